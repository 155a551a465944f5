"""torchrun, which kills a stopped rank 15 s after another one has failed.

Stock `torchrun` waits 30 s then, whatever its --shutdown-timeout; ranks that name a lost one need 7 s.

With USE_LIBUV=0, for a PyTorch without libuv such as Debian's, a file takes the place of the store of --standalone,
which would ask for libuv.
"""

import os
import sys
import tempfile

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import PContext

if __name__ == "__main__":
    PContext.close.__defaults__ = (None, 15)
    if os.environ.get("USE_LIBUV") == "0" and "--standalone" in sys.argv:
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        place = sys.argv.index("--standalone")
        handle, path = tempfile.mkstemp()
        os.close(handle)
        sys.argv[place : place + 1] = [
            *("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"),
            *("--rdzv-endpoint", path, "--rdzv-id", os.path.basename(path)),
        ]
    run.main()
