#include "test/standin/group.hpp"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "test/standin/error.hpp"
#include "test/standin/stream.hpp"

namespace standin {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Creation> creations;
  std::vector<std::function<void()>> background_creations;
  std::vector<Operation> operations;
};

Group& group() {
  thread_local Group instance;
  return instance;
}

// Each creation on a thread of its own, since the ranks of one process wait for each other.
void create_all(const std::vector<Creation>& creations) {
  std::vector<std::exception_ptr> errors(creations.size());
  const auto run = [&](std::size_t index) {
    try {
      creations[index].run();
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t index = 1; index < creations.size(); ++index) threads.emplace_back(run, index);
  if (!creations.empty()) run(0);
  for (std::thread& thread : threads) thread.join();
  const auto first = std::find_if(errors.begin(), errors.end(), [](const auto& error) { return error != nullptr; });
  if (first == errors.end()) return;
  for (const Creation& creation : creations) creation.undo();
  std::rethrow_exception(*first);
}

// Operations of one launch that run as one, on the first of their streams, while their other streams wait for them:
// those of one communicator, and those of its other ranks in this process that share a stream with it.
struct Batch {
  std::vector<cudaStream_t> streams;
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<std::vector<Operation>> operations;  // by communicator

  const Token& token() const { return communicators.front()->token(); }

  bool touches(const Operation& operation) const {
    return std::count(communicators.begin(), communicators.end(), operation.communicator) > 0 ||
           (operation.communicator->token() == token() &&
            std::count(streams.begin(), streams.end(), operation.stream) > 0);
  }

  void add(Operation operation) {
    if (std::count(streams.begin(), streams.end(), operation.stream) == 0) streams.push_back(operation.stream);
    const auto found = std::find(communicators.begin(), communicators.end(), operation.communicator);
    const auto index = static_cast<std::size_t>(found - communicators.begin());
    if (found == communicators.end()) {
      communicators.push_back(operation.communicator);
      operations.emplace_back();
    }
    operations[index].push_back(std::move(operation));
  }

  void add(Batch&& other) {
    for (auto& list : other.operations) {
      for (Operation& operation : list) add(std::move(operation));
    }
  }
};

std::vector<Batch> batches_of(std::vector<Operation> operations) {
  std::vector<Batch> batches;
  for (Operation& operation : operations) {
    Batch merged;
    std::vector<Batch> apart;
    for (Batch& batch : batches) {
      if (batch.touches(operation)) {
        merged.add(std::move(batch));
      } else {
        apart.push_back(std::move(batch));
      }
    }
    merged.add(std::move(operation));
    apart.push_back(std::move(merged));
    batches = std::move(apart);
  }
  // As NCCL, which orders a group's communicators by a hash: whatever the ranks' order of calls, communicators that
  // share a stream run one after the other in the same order everywhere.
  std::stable_sort(batches.begin(), batches.end(),
                   [](const Batch& one, const Batch& other) { return one.token() < other.token(); });
  return batches;
}

// What a stream's thread runs for a batch.
struct Launch {
  struct Part {
    std::shared_ptr<Communicator> communicator;
    std::uint64_t ticket = 0;
    std::vector<Step> steps;
  };
  std::vector<Part> parts;

  void run() {
    std::vector<Program> programs;
    for (Part& part : parts) {
      if (part.communicator->begin(part.ticket)) {
        programs.push_back(Program{part.communicator.get(), std::move(part.steps),
                                   [&part] { part.communicator->end(part.ticket, true); }});
      } else {
        part.communicator->end(part.ticket, false);
      }
    }
    run_programs(&programs);
  }
};

// Tickets and sequence numbers are taken in the order of issue.
Work issue(const Batch& batch) {
  auto work = std::make_shared<Launch>();
  for (std::size_t index = 0; index < batch.communicators.size(); ++index) {
    batch.communicators[index]->require_open();
    work->parts.push_back({batch.communicators[index], 0, plan(batch.operations[index])});
  }
  for (Launch::Part& part : work->parts) part.ticket = part.communicator->take_ticket();
  return [work] { work->run(); };
}

std::vector<std::shared_ptr<Stream>> streams_of(const Batch& batch) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (const cudaStream_t handle : batch.streams) streams.push_back(find_stream(handle));
  for (const auto& stream : streams) {
    if (stream->capture() != streams[0]->capture()) {
      throw Error(ncclInvalidUsage, "a group's streams must all be captured by the same graph, or none of them");
    }
  }
  return streams;
}

void launch(Batch batch) {
  const std::vector<std::shared_ptr<Stream>> streams = streams_of(batch);
  for (std::size_t index = 1; index < streams.size(); ++index) streams[0]->wait_for(streams[index]->record());
  streams[0]->issue([shared = std::make_shared<const Batch>(std::move(batch))] { return issue(*shared); });
  if (streams.size() == 1) return;
  const Point done = streams[0]->record();
  for (std::size_t index = 1; index < streams.size(); ++index) streams[index]->wait_for(done);
}

void launch_all(std::vector<Operation> operations) {
  require_matched_self(operations);
  std::vector<Batch> batches = batches_of(std::move(operations));
  for (const Batch& batch : batches) streams_of(batch);  // before anything is launched
  for (Batch& batch : batches) launch(std::move(batch));
}

}  // namespace

void group_start() { ++group().depth; }

ncclResult_t group_end(bool simulate) {
  Group& current = group();
  if (current.depth == 0) throw Error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (current.depth > 1) {
    --current.depth;
    return ncclSuccess;
  }
  Group ended = std::exchange(current, Group{});
  if (ended.error != ncclSuccess) {
    for (const Creation& creation : ended.creations) creation.undo();
    return ended.error;
  }
  for (const auto& start : ended.background_creations) start();
  create_all(ended.creations);
  if (!simulate) launch_all(std::move(ended.operations));
  return ended.background_creations.empty() ? ncclSuccess : ncclInProgress;
}

void submit(Operation operation) {
  if (operation.count == 0 && !operation.point_to_point()) return;
  Group& current = group();
  if (current.depth > 0) {
    current.operations.push_back(std::move(operation));
    return;
  }
  std::vector<Operation> alone;
  alone.push_back(std::move(operation));
  launch_all(std::move(alone));
}

ncclResult_t create(Creation creation) {
  Group& current = group();
  if (current.depth > 0) {
    current.creations.push_back(std::move(creation));
  } else {
    create_all({std::move(creation)});
  }
  return ncclSuccess;
}

ncclResult_t create_in_background(std::function<void()> start) {
  Group& current = group();
  if (current.depth > 0) {
    current.background_creations.push_back(std::move(start));
    return ncclSuccess;
  }
  start();
  return ncclInProgress;
}

ncclResult_t note(ncclResult_t result) {
  Group& current = group();
  if (current.depth > 0 && result != ncclSuccess && result != ncclInProgress) current.error = result;
  return result;
}

}  // namespace standin
