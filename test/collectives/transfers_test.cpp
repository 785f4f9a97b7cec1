// The point-to-point suite: an ordinary client of NCCL, run with libzipccl.so preloaded (or without: it then tests
// NCCL). Sends, receives and all-to-alls alone and in groups of every shape, on 2 to 64 ranks, byte for byte.
//
//   transfers-test RANKS [--share-gpu] [--large] [--unlike-types] [--replays N]
//   transfers-test RANKS --one-way         instead: what rank 0 sends turns incompressible, and must go native soon
//   transfers-test RANKS --soak GROUPS    instead: so many groups, one message in a hundred of random bits
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "test/collectives/all_gather_cases.hpp"
#include "test/collectives/message_runs.hpp"
#include "test/collectives/transfers_options.hpp"
#include "test/support/backend.hpp"
#include "test/support/helper_thread.hpp"
#include "test/support/ranks.hpp"
#include "test/support/report.hpp"

namespace zipccl::test {
namespace {

constexpr int finished_checks = 0;  // shared counter
constexpr int one_way_calls = 120;

using Options = TransfersOptions;
class InGroup {
 public:
  InGroup() { check_nccl(ncclGroupStart(), "ncclGroupStart"); }
  ~InGroup() { check_nccl(ncclGroupEnd(), "ncclGroupEnd"); }
  InGroup(const InGroup&) = delete;
  InGroup& operator=(const InGroup&) = delete;
};

class Suite {
 public:
  Suite(const Rank& rank, const Options& options)
      : rank_(rank), options_(options), backend_(make_backend(rank.rank())) {
    for (cudaStream_t& stream : streams_) {
      stream = backend_->create_stream();
    }
  }
  ~Suite() {
    for (cudaStream_t stream : streams_) {
      backend_->destroy_stream(stream);
    }
  }
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  int run() {
    world_ = rank_.create_communicator();
    second_ = rank_.create_communicator(rank_.size() - 1);
    if (options_.one_way) {
      one_way();
      return end();
    }
    if (options_.soak > 0) {
      soak();
      return end();
    }
    if (options_.unlike_types) {  // first: later messages between the pair are alike
      unlike_types();
    }
    all_to_alls();
    uneven();
    rings();
    cycle();
    unlike_grouping();
    same_peer();
    mixtures();
    several_streams();
    several_communicators();
    captured(world_);
    ncclComm_t fresh = rank_.create_communicator();
    captured(fresh);  // its first group, which needs staging
    check_nccl(ncclCommDestroy(fresh), "ncclCommDestroy");
    return end();
  }

 private:
  int end() {
    check_nccl(ncclCommDestroy(second_), "ncclCommDestroy");
    check_nccl(ncclCommDestroy(world_), "ncclCommDestroy");
    return faults_;
  }
  int own() const { return rank_.rank(); }
  int ranks() const { return rank_.size(); }
  int peer(int step) const { return (own() + step % ranks() + ranks()) % ranks(); }
  std::uint64_t seed() { return seed_ += 100'000; }

  void finish(int faults) {
    faults_ += faults;
    rank_.counter(finished_checks).fetch_add(1);
  }
  void finish(MessageRun& run) {
    for (cudaStream_t stream : streams_) {
      backend_->synchronize(stream);
    }
    finish(run.check());
  }

  // Nothing comes back that could tell the sender.
  void one_way() {
    for (int call = 0; call < one_way_calls; ++call) {
      let_helper_work();
      const Data data = call < one_way_calls / 2 ? Data::normal : Data::random;
      MessageRun run(*backend_, own(), {{0, 1, 40000, data, false, 0, seed()}});
      run.everything(world_, streams_[0]);
      finish(run);
      rank_.barrier();
    }
  }

  // A size that both ends compute, 0 now and then, of very unlike magnitudes.
  std::size_t size_between(int from, int to, std::uint64_t salt) const {
    std::uint64_t bits = salt * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(from * 64 + to) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 31) * 0x94D049BB133111EBu;
    bits ^= bits >> 29;
    if (bits % 5 == 0) {
      return 0;
    }
    const std::uint64_t most = std::uint64_t{1} << (4 + bits / 8 % (options_.large ? 18 : 14));
    return bits / 1024 % most;
  }

  // Every pair's message, self included.
  std::vector<Message> all_pairs(Data data, std::uint64_t salt) {
    std::vector<Message> messages;
    const std::uint64_t first = seed();
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) {
        messages.push_back({from, to, size_between(from, to, salt), data, false, (salt + messages.size()) % 9,
                            first + messages.size()});
      }
    }
    return messages;
  }

  void all_to_all(std::size_t count, Data data, std::size_t offset) {
    const std::size_t bytes = count * sizeof(std::uint16_t);
    const std::size_t total = bytes * static_cast<std::size_t>(ranks());
    const std::size_t shift = offset * sizeof(std::uint16_t);
    auto* sent = static_cast<std::byte*>(backend_->allocate(total + shift));
    auto* received = static_cast<std::byte*>(backend_->allocate(total + shift + 64));
    const std::uint64_t first = seed();
    const auto part = [&](int from, int to) {
      return make_data(data, count, first + static_cast<std::uint64_t>(from * ranks() + to));
    };
    std::vector<std::byte> expected(total + shift + 64, std::byte{0x5A});
    backend_->fill(received, 0x5A, expected.size());
    for (int other = 0; other < ranks() && count > 0; ++other) {
      const std::size_t place = shift + static_cast<std::size_t>(other) * bytes;
      backend_->upload(sent + place, part(own(), other).data(), bytes);
      std::memcpy(expected.data() + place, part(other, own()).data(), bytes);
    }
    check_nccl(ncclAlltoAll(sent + shift, received + shift, count, ncclBfloat16, world_, streams_[0]), "ncclAlltoAll");
    backend_->synchronize(streams_[0]);
    std::vector<std::byte> got(expected.size());
    backend_->download(got.data(), received, got.size());
    if (got != expected) {
      std::fprintf(stderr, "rank %d of %d: all-to-all, %s, %zu values a peer, offset %zu: wrong\n", own(), ranks(),
                   to_string(data), count, offset);
    }
    finish(got == expected ? 0 : 1);
    backend_->release(sent);
    backend_->release(received);
  }

  void all_to_alls() {
    std::vector<std::size_t> counts = {0, 1, 1023, 1024, 4099, 70001};
    if (options_.large) {
      counts.push_back((std::size_t{3} << 20) + 5);
    }
    for (const std::size_t count : counts) {
      for (int kind = 0; kind < data_kinds; ++kind) {
        all_to_all(count, static_cast<Data>(kind), static_cast<std::size_t>(kind) * 3 % 8);
      }
    }
  }

  // As PyTorch's all_to_all_single with splits: a send and a receive for every rank in one group.
  void uneven() {
    for (std::uint64_t round = 0; round < 12; ++round) {
      MessageRun run(*backend_, own(), all_pairs(static_cast<Data>(round % data_kinds), round));
      {
        const InGroup group;
        run.everything(world_, streams_[0]);
      }
      finish(run);
    }
  }

  // Lone operations, and batches as PyTorch's batch_isend_irecv makes them: groups of groups of one.
  void rings() {
    for (const std::size_t count : {std::size_t{1}, std::size_t{5000}, std::size_t{200003}}) {
      std::vector<Message> messages;
      const std::uint64_t first = seed();
      for (int rank = 0; rank < ranks(); ++rank) {
        messages.push_back({rank, (rank + 1) % ranks(), count, Data::mixture, false, 0, first + messages.size()});
      }
      MessageRun alone(*backend_, own(), messages);
      const auto before = static_cast<std::size_t>(peer(-1));
      const auto after = static_cast<std::size_t>(own());
      if (own() == 0) {  // somebody must receive first
        alone.receive(before, world_, streams_[0]);
        alone.send(after, world_, streams_[0]);
      } else {
        alone.send(after, world_, streams_[0]);
        alone.receive(before, world_, streams_[0]);
      }
      finish(alone);
      MessageRun batch(*backend_, own(), messages);
      {
        const InGroup outer;
        {
          const InGroup inner;
          batch.send(after, world_, streams_[0]);
        }
        const InGroup inner;
        batch.receive(before, world_, streams_[0]);
      }
      finish(batch);
    }
  }

  // A: group{send B, receive C}; B: send C, then receive A; C: send A, then receive B. Ends only if A's send and
  // receive make progress together.
  void cycle() {
    if (ranks() < 3) {
      return;
    }
    const std::uint64_t first = seed();
    MessageRun run(*backend_, own(),
                   {{0, 1, 90001, Data::normal, false, 0, first + 1},
                    {1, 2, 70001, Data::random, false, 0, first + 2},
                    {2, 0, 80001, Data::normal, false, 0, first + 3}});
    if (own() == 0) {
      const InGroup group;
      run.send(0, world_, streams_[0]);
      run.receive(2, world_, streams_[0]);
    } else if (own() == 1) {
      run.send(1, world_, streams_[0]);
      run.receive(0, world_, streams_[0]);
    } else if (own() == 2) {
      run.send(2, world_, streams_[0]);
      run.receive(1, world_, streams_[0]);
    }
    finish(run);
  }

  // Rank 0 sends in one group what rank 1 receives one by one, and the other way round.
  void unlike_grouping() {
    const std::uint64_t first = seed();
    std::vector<Message> messages;
    for (std::size_t index = 0; index < 6; ++index) {
      messages.push_back(
          {0, 1, 30000 + index * 7000, static_cast<Data>(index % data_kinds), index == 3, 0, first + index});
    }
    for (std::size_t index = 0; index < 4; ++index) {
      messages.push_back({1, 0, 20000 + index, Data::normal, false, index, first + 50 + index});
    }
    MessageRun run(*backend_, own(), messages);
    if (own() == 0) {
      {
        const InGroup group;
        for (std::size_t index = 0; index < 6; ++index) {
          run.send(index, world_, streams_[0]);
        }
      }
      for (std::size_t index = 6; index < messages.size(); ++index) {
        run.receive(index, world_, streams_[0]);
      }
    } else {
      for (std::size_t index = 0; index < 6; ++index) {
        run.receive(index, world_, streams_[0]);
      }
      const InGroup group;
      for (std::size_t index = 6; index < messages.size(); ++index) {
        run.send(index, world_, streams_[0]);
      }
    }
    finish(run);
  }

  // The two ends of a transfer name different types, which NCCL allows. Only where pairs compare their first calls
  // before anything is compressed (ZIPCCL_START=fenced).
  void unlike_types() {
    for (int round = 0; round < 40; ++round) {
      MessageRun sent(*backend_, own(), {{0, 1, 30000, Data::normal, false, 0, seed()}});
      MessageRun received(*backend_, own(), {{0, 1, 30000, Data::normal, true, 0, seed_}});
      sent.send(0, world_, streams_[0]);
      received.receive(0, world_, streams_[0]);
      finish(received);  // also the sender: its buffers end with the round
      rank_.barrier();
    }
  }

  // Several operations between one pair in one group keep their order, whatever their types.
  void same_peer() {
    std::vector<Message> messages;
    const std::uint64_t first = seed();
    for (int rank = 0; rank < ranks(); ++rank) {
      for (std::size_t index = 0; index < 7; ++index) {
        messages.push_back({rank, (rank + 1) % ranks(), index == 2 ? 0 : 9000 + 2000 * index,
                            static_cast<Data>(index % data_kinds), index % 3 == 1, index, first + messages.size()});
      }
    }
    MessageRun run(*backend_, own(), messages);
    {
      const InGroup group;
      run.everything(world_, streams_[0]);
    }
    finish(run);
  }

  // Compressed and native point to point, collectives of both kinds, an all-to-all, in one group.
  void mixtures() {
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::vector<Message> messages = all_pairs(round % 2 == 0 ? Data::normal : Data::random, 100 + round);
      for (std::size_t index = 0; index < messages.size(); index += 3) {
        messages[index].as_bytes = true;
      }
      MessageRun run(*backend_, own(), messages);
      GatherRun gather(*backend_, ranks(), own(), {6000 + round, Data::mixture, round % 2 == 1, round, seed()});
      constexpr std::size_t count = 3000;
      auto* sums = static_cast<float*>(backend_->allocate(count * sizeof(float)));
      const std::vector<float> ones(count, 1.0F);
      backend_->upload(sums, ones.data(), count * sizeof(float));
      {
        const InGroup group;
        const std::size_t middle = messages.size() / 2;
        for (std::size_t index = 0; index < middle; ++index) {
          run.send(index, world_, streams_[0]);
          run.receive(index, world_, streams_[0]);
        }
        gather.enqueue(world_, streams_[0]);
        check_nccl(ncclAllReduce(sums, sums, count, ncclFloat32, ncclSum, world_, streams_[0]), "ncclAllReduce");
        for (std::size_t index = middle; index < messages.size(); ++index) {
          run.receive(index, world_, streams_[0]);
          run.send(index, world_, streams_[0]);
        }
      }
      finish(run);
      finish(gather.finish(streams_[0]));
      std::vector<float> total(count);
      backend_->download(total.data(), sums, count * sizeof(float));
      finish(total == std::vector<float>(count, static_cast<float>(ranks())) ? 0 : 1);
      backend_->release(sums);
    }
  }

  // One communicator from several streams, in one group and from group to group, nothing waited for in between.
  void several_streams() {
    std::vector<std::unique_ptr<MessageRun>> runs;
    for (std::uint64_t round = 0; round < 9; ++round) {
      runs.push_back(std::make_unique<MessageRun>(
          *backend_, own(), all_pairs(round % 4 == 3 ? Data::random : Data::normal, 200 + round)));
    }
    for (std::size_t round = 0; round < runs.size(); ++round) {
      const InGroup group;
      for (int index = 0; index < ranks() * ranks(); ++index) {
        const auto message = static_cast<std::size_t>(index);
        const std::size_t first = round % streams_.size();
        const std::size_t stream = round % 2 == 0 ? first : (first + message) % streams_.size();
        runs[round]->send(message, world_, streams_[stream]);
        runs[round]->receive(message, world_, streams_[stream]);
      }
    }
    for (const auto& run : runs) {
      finish(*run);
    }
  }

  void several_communicators() {
    for (std::uint64_t round = 0; round < 3; ++round) {
      MessageRun one(*backend_, own(), all_pairs(Data::normal, 300 + round));
      MessageRun other(*backend_, own(), all_pairs(Data::mixture, 400 + round));
      {
        const InGroup group;
        one.everything(world_, streams_[0]);
        other.everything(second_, streams_[round % 2]);
      }
      finish(one);
      finish(other);
    }
  }

  // Many groups in flight, of both communicators in turn and on all streams.
  void soak() {
    constexpr std::size_t in_flight = 20;
    std::vector<std::unique_ptr<MessageRun>> runs;
    std::uint64_t message = 0;
    for (std::size_t index = 0; index < in_flight; ++index) {
      std::vector<Message> messages = all_pairs(Data::normal, 600 + index);
      for (Message& one : messages) {
        one.data = ++message % 100 == 50 ? Data::random : Data::normal;
      }
      runs.push_back(std::make_unique<MessageRun>(*backend_, own(), messages));
    }
    int faults = 0;
    for (std::uint64_t group = 0; group < options_.soak && faults == 0; group += in_flight) {
      for (std::size_t index = 0; index < in_flight; ++index) {
        const InGroup one;
        runs[index]->everything(index % 3 == 2 ? second_ : world_, streams_[index % streams_.size()]);
      }
      for (cudaStream_t stream : streams_) {
        backend_->synchronize(stream);
      }
      for (const auto& run : runs) {
        faults += run->check();
        run->refill(seed());
      }
    }
    finish(faults);
  }

  // A captured group, replayed with other data, also such that overflows, and eager ones in between.
  void captured(ncclComm_t communicator) {
    MessageRun eager(*backend_, own(), all_pairs(Data::normal, 500));
    std::vector<Message> grown = all_pairs(Data::normal, 500);
    for (Message& message : grown) {
      message.count = 2 * message.count + 3000;
    }
    MessageRun larger(*backend_, own(), grown);
    MessageRun calm(*backend_, own(), all_pairs(Data::mixture, 500));
    MessageRun wild(*backend_, own(), all_pairs(Data::random, 500));
    std::array<void*, 2> graphs{};
    for (std::size_t index = 0; index < graphs.size(); ++index) {
      backend_->begin_capture(streams_[index]);
      {
        const InGroup group;
        (index == 0 ? calm : wild).everything(communicator, streams_[index]);
      }
      graphs[index] = backend_->end_capture(streams_[index]);
    }
    int faults = 0;
    for (int replay = 0; replay < options_.replays; ++replay) {
      MessageRun& run = replay % 7 == 6 ? wild : calm;
      run.refill(seed());
      rank_.barrier();  // a refilled output must not be written by what comes next
      backend_->launch(graphs[replay % 7 == 6 ? 1 : 0], streams_[2]);
      if (replay % 5 == 4) {
        const InGroup group;
        (replay == 4 ? larger : eager).everything(communicator, streams_[0]);  // staging grows while graphs use it
      }
      for (cudaStream_t stream : streams_) {
        backend_->synchronize(stream);
      }
      faults += run.check();
    }
    finish(faults);
    finish(larger);
    for (void* graph : graphs) {
      backend_->destroy_graph(graph);
    }
  }

  const Rank& rank_;
  const Options& options_;
  std::unique_ptr<Backend> backend_;
  std::array<cudaStream_t, 3> streams_{};
  ncclComm_t world_ = nullptr;
  ncclComm_t second_ = nullptr;
  std::uint64_t seed_ = 0;
  int faults_ = 0;
};

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  using namespace zipccl::test;
  Options options;
  if (!parse(argc, argv, &options)) {
    return 2;
  }
  const char* folder = std::getenv("ZIPCCL_REPORT");
  if (options.one_way && folder != nullptr) {  // of an earlier run
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  RankGroup group(options.ranks, options.share_gpu);
  int failed = group.run([&](const Rank& rank) { return Suite(rank, options).run() == 0 ? 0 : 1; }, 500);
  std::printf("%d ranks: %llu checks, %d ranks failed\n", options.ranks,
              static_cast<unsigned long long>(group.counter(finished_checks)), failed);
  if (options.one_way && folder != nullptr) {
    const std::uint64_t compressed = reported_calls(folder, "compressed", "send");
    std::printf("%llu sends compressed\n", static_cast<unsigned long long>(compressed));
    // From the first ones on, and some of those that overflow.
    failed += compressed < one_way_calls / 4 || compressed > one_way_calls * 2 / 3 ? 1 : 0;
  }
  return failed != 0 ? 1 : 0;
}
