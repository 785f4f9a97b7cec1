// Every environment variable that zipccl reads, in one table: documentation, parser, defaults and the check for
// misspelt names are made from it. Variables that do not work yet are not in it.
#pragma once

// X(member of Settings, name, kind (config.hpp), default, accepted values, what it does)
#define ZIPCCL_PARAMETERS(X)                                                                                        \
  X(enabled, "ZIPCCL", Switch, "on", "on, off", "off: every call goes to NCCL untouched")                           \
  X(collectives, "ZIPCCL_COLLECTIVES", CollectiveList, "allgather,alltoall,p2p",                                    \
    "none or a list of: allgather, alltoall, p2p",                                                                  \
    "what may be compressed (p2p: ncclSend and ncclRecv); must be the same on all ranks")                           \
  X(min_bytes, "ZIPCCL_MIN_BYTES", BytesOrAuto, "auto", "auto or bytes, with a suffix K, M or G (powers of 1,024)", \
    "smallest call that is compressed, in bytes of its whole output or of the message; auto: by the slowest link "  \
    "among the ranks, over NVLink only with ZIPCCL_COPY_ENGINES; must be the same on all ranks")                    \
  X(exchange, "ZIPCCL_EXCHANGE", ExchangeMode, "static", "static, exact, sizes-first",                              \
    "how data of an all-gather travels that exceeds a message's fixed part; must be the same on all ranks")         \
  X(start, "ZIPCCL_START", StartMode, "fenced", "fenced, now, always",                                              \
    "fenced: calls are native until their values have shown that compression pays and all ranks are ready; now: "   \
    "compressed from the first one on, and native later if it does not pay; always: compressed, for tests and "     \
    "benchmarks; must be the same on all ranks")                                                                    \
  X(pool_bytes, "ZIPCCL_POOL", PoolBytes, "1", "0 to 1024",                                                         \
    "least room for outliers in a message's fixed part, in bytes for every 1,024 values; calls that need more get " \
    "it; must be the same on all ranks")                                                                            \
  X(staging_bytes, "ZIPCCL_STAGING_MB", Mebibytes, "128", "1 to 65536",                                             \
    "device memory of one communicator for compressed all-gathers, in MiB; the ranks agree on the smallest")        \
  X(transfer_bytes, "ZIPCCL_TRANSFER_MB", MebibytesOrNone, "0", "0 to 65536",                                       \
    "device memory that a communicator reserves for all-to-alls and point to point before the first of them, in "   \
    "MiB; it grows as they need it")                                                                                \
  X(copy_engines, "ZIPCCL_COPY_ENGINES", Flag, "0", "0, 1",                                                         \
    "1: all-gathers over NVLink are compressed too, from the first one on, through the GPUs' copy engines (NCCL "   \
    "2.28 and newer); such communicators take their staging when they are made; must be the same on all ranks")     \
  X(ignore_max_connections, "ZIPCCL_IGNORE_MAX_CONNECTIONS", Flag, "0", "0, 1",                                     \
    "1: compress all-gathers although CUDA_DEVICE_MAX_CONNECTIONS is below 8; must be the same on all ranks")       \
  X(report_directory, "ZIPCCL_REPORT", Text, "", "a folder",                                                        \
    "where each process writes its report, as JSON; made if it does not exist")                                     \
  X(nccl_library, "ZIPCCL_NCCL_LIB", Text, "", "path of a shared library",                                          \
    "the NCCL to use, instead of the one that the process has loaded")                                              \
  X(socket_interfaces, "ZIPCCL_SOCKET_IFNAME", Text, "", "as NCCL_SOCKET_IFNAME",                                   \
    "network interfaces for the agreement between ranks, instead of NCCL_SOCKET_IFNAME")                            \
  X(debug, "ZIPCCL_DEBUG", Level, "WARN", "NONE, ERROR, WARN, INFO, TRACE", "how much is logged")                   \
  X(debug_file, "ZIPCCL_DEBUG_FILE", Text, "", "a path; %h is the host's name, %p the process's number",            \
    "where the log goes, instead of stderr")
