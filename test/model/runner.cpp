#include "test/model/runner.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace zipccl::test {
namespace {

ncclResult_t all_to_all(const std::byte* send, std::byte* receive, const Action& action, ncclComm_t communicator,
                        cudaStream_t stream, [[maybe_unused]] std::size_t ranks) {
#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE < 22800  // before ncclAlltoAll
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    const std::size_t offset = peer * action.part_bytes();
    const auto number = static_cast<int>(peer);
    check_nccl(ncclSend(send + offset, action.count, action.type, number, communicator, stream), "ncclSend");
    check_nccl(ncclRecv(receive + offset, action.count, action.type, number, communicator, stream), "ncclRecv");
  }
  return ncclGroupEnd();
#else
  return ncclAlltoAll(send, receive, action.count, action.type, communicator, stream);
#endif
}

}  // namespace

Runner::Runner(const Rank& rank, const World& world)
    : rank_(rank),
      world_(world),
      backend_(make_backend(rank.rank())),
      delays_(static_cast<std::uint64_t>(rank.rank())) {
  for (int stream = 0; stream < world.streams; ++stream) {
    streams_.push_back(backend_->create_stream());
    arenas_.push_back(static_cast<std::byte*>(backend_->allocate(world.arena_bytes)));
  }
  for (std::size_t index = 0; index < world.communicators.size(); ++index) {
    const std::vector<int>& members = world.communicators[index];
    const ncclUniqueId id = rank.exchange_id(members[0]);
    const int own = world.member(static_cast<int>(index), rank.rank());
    ncclComm_t communicator = nullptr;
    if (own >= 0) {
      check_nccl(ncclCommInitRank(&communicator, static_cast<int>(members.size()), id, own), "ncclCommInitRank");
    }
    communicators_.push_back(communicator);
    if (communicator != nullptr) connect(communicator, members.size());
  }
}

// NCCL connects a pair on its first message, and both hosts wait for that. A program that may not block is one among
// ranks that are connected.
void Runner::connect(ncclComm_t communicator, std::size_t ranks) {
  constexpr std::size_t part = 16;  // bytes
  auto* buffer = static_cast<std::byte*>(backend_->allocate(2 * part * ranks));
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    const auto number = static_cast<int>(peer);
    std::byte* receive = buffer + part * (ranks + peer);
    check_nccl(ncclSend(buffer + part * peer, part, ncclUint8, number, communicator, streams_[0]), "ncclSend");
    check_nccl(ncclRecv(receive, part, ncclUint8, number, communicator, streams_[0]), "ncclRecv");
  }
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  backend_->synchronize(streams_[0]);
  backend_->release(buffer);
}

Runner::~Runner() {
  rank_.barrier();
  for (ncclComm_t communicator : communicators_) {
    if (communicator != nullptr) check_nccl(ncclCommDestroy(communicator), "ncclCommDestroy");
  }
  for (cudaStream_t stream : streams_) backend_->destroy_stream(stream);
  for (std::byte* arena : arenas_) backend_->release(arena);
}

std::string Runner::run(const Program& program) {
  fill(world_, program.seed, &memory_);
  const auto first = static_cast<std::size_t>(rank_.rank() * world_.streams);
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    backend_->upload(arenas_[stream], memory_[first + stream].data(), world_.arena_bytes);
  }
  issue(program);
  execute(world_, program, &memory_);
  for (cudaStream_t stream : streams_) backend_->synchronize(stream);
  for (ncclComm_t communicator : communicators_) {
    ncclResult_t error = ncclSuccess;
    if (communicator != nullptr) check_nccl(ncclCommGetAsyncError(communicator, &error), "ncclCommGetAsyncError");
    if (error != ncclSuccess) return std::string("asynchronous error: ") + ncclGetErrorString(error);
  }
  return compare(memory_);
}

void Runner::issue(const Program& program) {
  const std::vector<Launch>& launches = program.ranks[static_cast<std::size_t>(rank_.rank())];
  if (program.replays == 0) {
    for (const Launch& launch : launches) issue(launch);
    return;
  }
  backend_->begin_capture(streams_[0]);
  for (std::size_t stream = 1; stream < streams_.size(); ++stream) backend_->wait_for(streams_[stream], streams_[0]);
  for (const Launch& launch : launches) issue(launch);
  for (std::size_t stream = 1; stream < streams_.size(); ++stream) backend_->wait_for(streams_[0], streams_[stream]);
  void* graph = backend_->end_capture(streams_[0]);
  for (int replay = 0; replay < program.replays; ++replay) backend_->launch(graph, streams_[0]);
  backend_->synchronize(streams_[0]);
  backend_->destroy_graph(graph);
}

// Now and then, so that ranks meet each other in other states.
void Runner::dawdle() {
  if (delays_.chance(8)) std::this_thread::sleep_for(std::chrono::microseconds(delays_.below(1000)));
}

void Runner::issue(const Launch& launch) {
  dawdle();
  const cudaStream_t stream = streams_[static_cast<std::size_t>(launch.stream)];
  if (launch.step == Launch::Step::wait) {
    backend_->wait_for(stream, streams_[static_cast<std::size_t>(launch.other)]);
    return;
  }
  if (launch.step == Launch::Step::synchronize) {
    backend_->synchronize(stream);
    return;
  }
  if (!launch.grouped) {
    issue(launch.actions.front());
    return;
  }
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t index = 0; index < launch.actions.size(); ++index) {
    for (int group = 0; group < launch.opens[index]; ++group) check_nccl(ncclGroupStart(), "ncclGroupStart");
    issue(launch.actions[index]);
    for (int group = 0; group < launch.closes[index]; ++group) check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }
  check_nccl(ncclGroupEnd(), "ncclGroupEnd");
}

std::byte* Runner::place(const Action& action, std::size_t offset) const {
  return arenas_[static_cast<std::size_t>(action.stream)] + offset;
}

void Runner::issue(const Action& action) {
  const ncclComm_t communicator = communicators_[static_cast<std::size_t>(action.communicator)];
  const cudaStream_t stream = streams_[static_cast<std::size_t>(action.stream)];
  std::byte* send = place(action, action.send_offset);
  std::byte* receive = place(action, action.receive_offset);
  switch (action.kind) {
    case Kind::send:
      check_nccl(ncclSend(send, action.count, action.type, action.peer, communicator, stream), "ncclSend");
      break;
    case Kind::receive:
      check_nccl(ncclRecv(receive, action.count, action.type, action.peer, communicator, stream), "ncclRecv");
      break;
    case Kind::all_gather:
      check_nccl(ncclAllGather(send, receive, action.count, action.type, communicator, stream), "ncclAllGather");
      break;
    case Kind::all_to_all:
      check_nccl(all_to_all(send, receive, action, communicator, stream,
                            world_.communicators[static_cast<std::size_t>(action.communicator)].size()),
                 "all-to-all");
      break;
  }
}

std::string Runner::compare(const WorldMemory& expected) {
  std::vector<std::byte> actual(world_.arena_bytes);
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    backend_->download(actual.data(), arenas_[stream], actual.size());
    const auto& wanted = expected[static_cast<std::size_t>(rank_.rank() * world_.streams) + stream];
    const auto [found, place] = std::mismatch(actual.begin(), actual.end(), wanted.begin());
    if (found == actual.end()) continue;
    std::size_t different = 0;
    for (std::size_t index = 0; index < actual.size(); ++index) different += actual[index] != wanted[index];
    char text[160];
    std::snprintf(text, sizeof(text), "stream %zu: %zu bytes differ, the first at %td: 0x%02x instead of 0x%02x",
                  stream, different, found - actual.begin(), std::to_integer<unsigned>(*found),
                  std::to_integer<unsigned>(*place));
    return text;
  }
  return {};
}

}  // namespace zipccl::test
