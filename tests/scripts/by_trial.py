"""Train as plain_loop.py does, or go wrong: the number of the trial says how.

torchrun --nproc_per_node 2 by_trial.py --trial 0 --deepspeed_config plain_loop.json
"""

import os
import runpy
import sys

COMMANDS = {
    2: "broken.py --fault traceback --rank 1",
    3: "broken.py --fault sigkill_self --rank 1",
    4: "faulty.py --fault nan",
    5: "broken.py --fault exit_0_late",
}


def main():
    at = sys.argv.index("--trial")
    trial = int(sys.argv[at + 1])
    script, *arguments = COMMANDS.get(trial, "plain_loop.py --eval_every 0").split()
    sys.argv = [script, *arguments, *sys.argv[1:at], *sys.argv[at + 2 :]]
    runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), script), run_name="__main__")


if __name__ == "__main__":
    main()
