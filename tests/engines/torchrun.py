"""torchrun, which kills a stopped rank 15 s after another one has failed.

Stock `torchrun` waits 30 s then, whatever its --shutdown-timeout; ranks that name a lost one need 7 s.
"""

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import PContext

if __name__ == "__main__":
    PContext.close.__defaults__ = (None, 15)
    run.main()
