"""What people look at: figures, panel, browsers of completions, the map of tasks, a model card.

`plots`, `panel`, `browser`, `rollouts` and `embedding` show, `verification` makes what was shown again and compares,
`overview` lists and compares runs, `export` hands a model on. Each is imported by its name, so that a figure costs no
widgets.
"""
