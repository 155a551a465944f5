// The part of NCCL that BytePS calls, for one process per worker: there is nobody to talk to, so
// communicators of one rank exist and collectives are refused.
#pragma once

#include <cstddef>
#include <cstring>

#include "cuda_runtime.h"

enum ncclResult_t { ncclSuccess = 0, ncclInvalidUsage = 5 };
enum ncclRedOp_t { ncclSum = 0 };
enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8
};

struct ncclUniqueId {
  char internal[128];
};
using ncclComm_t = struct HostComm*;

inline const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess
             ? "no error"
             : "this build of BytePS has no NCCL: it is for CPU tensors and one process per worker "
               "(BYTEPS_LOCAL_SIZE=1)";
}

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof id->internal);
  return ncclSuccess;
}
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int) {
  *comm = nullptr;
  return ranks == 1 ? ncclSuccess : ncclInvalidUsage;
}
inline ncclResult_t ncclGroupStart() { return ncclSuccess; }
inline ncclResult_t ncclGroupEnd() { return ncclSuccess; }

inline ncclResult_t ncclReduce(const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, int,
                               ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclBroadcast(const void*, void*, std::size_t, ncclDataType_t, int, ncclComm_t,
                                  cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclReduceScatter(const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t,
                                      ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclAllGather(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t,
                                  cudaStream_t) {
  return ncclInvalidUsage;
}
