"""Policy x tasks -> records of completions with their verdicts -> tables with intervals.

`records` measures and writes, `results` makes tables of what was written, without the model, `gate` says whether a
recipe is worth training, and `statistics` has the intervals and tests, which need nothing of this project.
"""

from .gate import Gate, gate, gate_records, try_tasks
from .records import (
    Drawn,
    error_kind,
    evaluate_policy,
    judge_completions,
    plan_evaluation,
    record_header,
    score_completions,
    sweep,
)
from .results import (
    TOTAL,
    best_prompt,
    chain_records,
    choose_checkpoint,
    comparison_table,
    load_records,
    markdown_table,
    mean_over_tasks,
    of_policy,
    paired_difference,
    pass_curves,
    per_task,
    reward_table,
    step_of,
    summarise_records,
    without_effect,
    write_results,
)
from .statistics import (
    Difference,
    Interval,
    across_seeds,
    best_of,
    difference,
    groups_differ,
    holm,
    minimum_detectable_difference,
    mixed_groups,
    mixed_share,
    pass_at_k,
    pass_curve,
    rate,
    verdict,
)
