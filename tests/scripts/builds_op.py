"""Build a small op at the start, as DeepSpeed builds its own, then train as plain_loop.py does.

torchrun --nproc_per_node 2 builds_op.py --deepspeed_config plain_loop.json
"""

import os
import tempfile

import plain_loop
from torch.utils import cpp_extension


def build(folder):
    source = os.path.join(folder, "small_op.cpp")
    with open(source, "w") as file:
        file.write('extern "C" int small_op() { return 1; }\n')
    cpp_extension.load(name="small_op", sources=[source], is_python_module=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
    plain_loop.main()
