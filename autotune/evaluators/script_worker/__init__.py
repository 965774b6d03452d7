"""What runs beside a user's training script: the guard of its launcher, and the probe in each of its ranks.

    guard        starts the command, supervises the ranks on their own node, composes the measurement, ends everything
    on_path      the folder put on PYTHONPATH: its sitecustomize loads the probe into every Python of the command
    probe        waits for torch.distributed and DeepSpeed to be imported, and watches what they are asked to do
    engine_watch times the engine's steps, reads its losses, ends the run at the budget

The probe loads nothing beyond the standard library until the script itself has loaded torch and DeepSpeed.
"""
