"""What a run is: the recipe that says what to do, and the folder that keeps what came of it.

Every other room but the sandbox stands on this one; it knows nothing of tasks, models or rewards. `chain` executes the
notebooks into a run's folder. It imports nothing heavier than pydantic, so a mistake in a recipe is told at once.
"""

from .errors import UserError, nearest
from .folder import (
    EXTRA,
    HEADLESS,
    LAUNCHED,
    LOCK_VARIABLE,
    SEAL,
    LogEntry,
    RunError,
    adapters,
    checkpoints,
    clear_run,
    damaged_file,
    describe_environment,
    drop_damaged,
    drop_extra,
    existing_run,
    extend_run,
    hold_lock,
    is_main_process,
    lock_descriptors,
    manifest,
    need_file,
    need_gpu,
    outputs_folder,
    read_json,
    read_log,
    record_path,
    remove_files,
    seal_adapter,
    start_run,
    update_manifest,
    write_file,
    write_manifest,
    writes_alone,
)
from .imports import import_files
from .machine import cache_folder, faster_dtype, processor
from .recipe import (
    BASE,
    NEEDED,
    NEUTRAL,
    RECIPES,
    WARM_START,
    Dataset,
    Evaluation,
    Model,
    Prompt,
    Recipe,
    RecipeError,
    Sampling,
    Split,
    Teacher,
    complaint,
    load_recipe,
    parse_yaml,
    recipe_files,
    sampling_of,
)
from .sources import ROOT, code_hash, meaning_hash
