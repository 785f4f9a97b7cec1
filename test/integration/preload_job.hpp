// What the scenarios of a preloaded job share: ids left in a folder, all-gathers whose data is known, checks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "test/standin/standin_nccl.h"

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      std::printf("line %d: expected %s\n", __LINE__, #condition); \
      std::fflush(stdout);                                         \
      std::_Exit(1);                                               \
    }                                                              \
  } while (false)

namespace preload {

inline int rank_number() { return std::atoi(std::getenv("RANK")); }
inline int world_size() { return std::atoi(std::getenv("WORLD_SIZE")); }

// A word that a rank leaves for the others, and their wait for it.
inline std::string word_path(const std::string& word, int rank) {
  return std::string(std::getenv("ID_DIRECTORY")) + "/id-" + word + std::to_string(rank);
}
inline void say(const std::string& word) { std::ofstream(word_path(word, rank_number())).put('.'); }
inline void await(const std::string& word, int rank) {
  while (!std::ifstream(word_path(word, rank))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Rank 0 makes an id, all others read it.
inline ncclUniqueId exchange_id() {
  static int number = 0;
  const std::string path = std::string(std::getenv("ID_DIRECTORY")) + "/id" + std::to_string(number++);
  ncclUniqueId id{};
  if (rank_number() == 0) {
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess);
    std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    EXPECT(std::rename((path + ".new").c_str(), path.c_str()) == 0);
    return id;
  }
  while (true) {
    if (std::ifstream file(path, std::ios::binary); file.read(id.internal, sizeof(id.internal))) {
      return id;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

inline ncclComm_t create(ncclConfig_t* config = nullptr) {
  const ncclUniqueId id = exchange_id();
  ncclComm_t comm = nullptr;
  const ncclResult_t result = config == nullptr
                                  ? ncclCommInitRank(&comm, world_size(), id, rank_number())
                                  : ncclCommInitRankConfig(&comm, world_size(), id, rank_number(), config);
  if (result != ncclSuccess && result != ncclInProgress) {
    std::printf("init result %d\n", result);
    std::fflush(stdout);
    std::_Exit(3);
  }
  return comm;
}

// Values as in trained weights: random sign and mantissa, exponents around 2^-6.
inline std::uint16_t value_of(int rank, std::size_t index) {
  std::uint32_t hash = static_cast<std::uint32_t>(index * 2654435761u) ^ static_cast<std::uint32_t>(rank * 40503);
  hash ^= hash >> 15;
  hash *= 2246822519u;
  hash ^= hash >> 13;
  const std::uint32_t exponent = 121 - static_cast<std::uint32_t>(__builtin_ctz(hash | 0x100));
  return static_cast<std::uint16_t>(((hash >> 31) << 15) | (exponent << 7) | ((hash >> 20) & 0x7f));
}

// Values that no pool of the default size can hold: every exponent is as likely as any other.
inline std::uint16_t random_value_of(int rank, std::size_t index) {
  std::uint32_t hash = static_cast<std::uint32_t>(index) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  return static_cast<std::uint16_t>((hash ^ hash >> 13) >> 8);
}

// Declared after the buffers it works on: it waits for its work before they go.
struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { EXPECT(zipccl_host_runtime.stream_create(&stream) == 0); }
  ~Stream() { zipccl_host_runtime.stream_destroy(stream); }
  void wait() const { EXPECT(zipccl_host_runtime.stream_synchronize(stream) == 0); }
};

// One all-gather's buffers; `rank` and `ranks` are those of its communicator, `sender` maps its ranks to ours.
struct Gather {
  std::vector<std::uint16_t> send, receive;
  std::vector<int> senders;
  Gather(std::size_t count, std::vector<int> all) : send(count), receive(count * all.size()), senders(std::move(all)) {
    for (std::size_t i = 0; i < count; ++i) {
      send[i] = value_of(rank_number(), i);
    }
  }
  ncclResult_t call(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type = ncclBfloat16) {
    const std::size_t count = type == ncclBfloat16 ? send.size() : send.size() * sizeof(std::uint16_t);
    return ncclAllGather(send.data(), receive.data(), count, type, comm, stream);
  }
  void check() const {
    for (std::size_t r = 0; r < senders.size(); ++r) {
      for (std::size_t i = 0; i < send.size(); ++i) {
        EXPECT(receive[r * send.size() + i] == value_of(senders[r], i));
      }
    }
  }
};

inline std::vector<int> everybody() {
  std::vector<int> ranks(static_cast<std::size_t>(world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline constexpr std::size_t standard_count = 40000;

// `members` are the communicator's ranks as we count them.
inline void gather_among(ncclComm_t comm, const std::vector<int>& members, ncclDataType_t type = ncclBfloat16) {
  Gather gather(standard_count, members);
  const Stream stream;
  EXPECT(gather.call(comm, stream.stream, type) == ncclSuccess);
  stream.wait();
  gather.check();
}

inline void gather_and_check(ncclComm_t comm, ncclDataType_t type = ncclBfloat16) {
  gather_among(comm, everybody(), type);
}

// Those of preload_children.cpp; 2 if it is none.
int children_scenario(int argc, char** argv);
// Those of preload_groups.cpp; 2 if it is none.
int group_scenario(int argc, char** argv);
// Those of preload_transfers.cpp; 2 if it is none.
int transfer_scenario(int argc, char** argv);
// Those of preload_start.cpp; 2 if it is none.
int start_scenario(int argc, char** argv);

}  // namespace preload
