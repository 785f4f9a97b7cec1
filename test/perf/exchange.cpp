#include "test/perf/exchange.hpp"

#include <algorithm>
#include <numeric>

namespace zipccl::test {

namespace {

constexpr std::uint8_t poison = 0xA5;

class AllGather final : public Exchange {
 public:
  AllGather(const Options& options, const Job& job, Backend& backend, std::uint64_t bytes)
      : backend_(backend),
        type_(element_type(options.type)),
        in_place_(options.in_place),
        shard_bytes_(bytes / (type_.bytes * static_cast<std::size_t>(job.size())) * type_.bytes),
        own_(static_cast<std::size_t>(job.rank()) * shard_bytes_),
        expected_(backend, shard_bytes_ * static_cast<std::size_t>(job.size())),
        receive_(backend, shard_bytes_ * static_cast<std::size_t>(job.size())) {
    const auto ranks = static_cast<std::size_t>(job.size());
    count_ = shard_bytes_ / type_.bytes;
    bytes_ = shard_bytes_ * ranks;
    bus_bytes_ = shard_bytes_ * (ranks - 1);
    operations_ = {bytes_};
    const Values values(options, bytes, "weights");
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      values.upload(backend, expected_.data() + rank * shard_bytes_, rank, shard_bytes_);
    }
  }

  void prepare(bool poisoned) override {
    if (poisoned) {
      backend_.fill(receive_.data(), poison, bytes_);
    }
    if (in_place_) {
      backend_.copy(receive_.data() + own_, expected_.data() + own_, shard_bytes_);
    }
  }
  ncclResult_t call(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream) override {
    const unsigned char* send = (in_place_ ? receive_.data() : expected_.data()) + own_;
    return nccl.all_gather(send, receive_.data(), count_, type_.nccl, communicator, stream);
  }
  bool correct() override { return backend_.equal(receive_.data(), expected_.data(), bytes_); }

 private:
  Backend& backend_;
  ElementType type_;
  bool in_place_;
  std::size_t shard_bytes_;
  std::size_t own_;  // offset of this rank's shard
  Buffer expected_;  // every rank's input, one behind the other
  Buffer receive_;
};

// Values that rank `to` gets of `count` that every rank sends. Sums to `count` over all ranks.
std::size_t share(Split split, std::size_t count, std::size_t to, std::size_t ranks) {
  const auto weight = [&](std::size_t rank) {
    switch (split) {
      case Split::zipf:
        return 1.0 / static_cast<double>(rank + 1);
      case Split::single_hot:
        return ranks == 1 || rank == 0 ? 0.8 : 0.2 / static_cast<double>(ranks - 1);
      case Split::even:
        break;
    }
    return 1.0;
  };
  double all = 0;
  double before = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    all += weight(rank);
    before += rank < to ? weight(rank) : 0;
  }
  const auto edge = [&](double sum) { return static_cast<std::size_t>(static_cast<double>(count) * (sum / all)); };
  const std::size_t end = to + 1 == ranks ? count : edge(before + weight(to));
  return end - edge(before);
}

class AllToAll final : public Exchange {
 public:
  AllToAll(const Options& options, const Job& job, Backend& backend, std::uint64_t bytes)
      : backend_(backend),
        type_(element_type(options.type)),
        ranks_(static_cast<std::size_t>(job.size())),
        rank_(static_cast<std::size_t>(job.rank())),
        grouped_(options.grouped || options.split != Split::even),
        sizes_(backend, 2 * ranks_ * size_bytes),
        host_sizes_(ranks_) {
    // Even splits are exactly even, as ncclAlltoAll needs them.
    count_ = options.split == Split::even ? bytes / type_.bytes / ranks_ * ranks_ : bytes / type_.bytes;
    bytes_ = count_ * type_.bytes;
    for (std::size_t to = 0; to < ranks_; ++to) {
      counts_.push_back(share(options.split, count_, to, ranks_));
      const std::uint64_t sent = (count_ - counts_[to]) * type_.bytes;
      const std::uint64_t received = (ranks_ - 1) * counts_[to] * type_.bytes;
      bus_bytes_ = std::max({bus_bytes_, sent, received});
    }
    const std::size_t receive_bytes = ranks_ * counts_[rank_] * type_.bytes;
    send_ = std::make_unique<Buffer>(backend, bytes_);
    receive_ = std::make_unique<Buffer>(backend, receive_bytes);
    expected_ = std::make_unique<Buffer>(backend, receive_bytes);
    const std::vector<std::int64_t> sizes(counts_.begin(), counts_.end());
    backend.upload(sizes_.data(), sizes.data(), ranks_ * size_bytes);
    const Values values(options, bytes, "mlp-input-l");
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      values.upload(backend, send_->data() + send_offset(peer), rank_ * ranks_ + peer, counts_[peer] * type_.bytes);
      values.upload(backend, expected_->data() + receive_offset(peer), peer * ranks_ + rank_,
                    counts_[rank_] * type_.bytes);
      if (grouped_) {
        operations_.push_back(counts_[peer] * type_.bytes);
      }
    }
    if (!grouped_) {
      operations_ = {bytes_};
    }
  }

  void prepare(bool poisoned) override {
    if (poisoned) {
      backend_.fill(receive_->data(), poison, ranks_ * counts_[rank_] * type_.bytes);
    }
  }
  ncclResult_t call(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream) override {
    if (!grouped_ && nccl.all_to_all != nullptr) {
      return nccl.all_to_all(send_->data(), receive_->data(), counts_[0], type_.nccl, communicator, stream);
    }
    check(nccl.group_start(), "ncclGroupStart");
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      send(nccl, communicator, stream, peer, 0, counts_[peer]);
      receive(nccl, communicator, stream, peer, 0, counts_[rank_]);
    }
    return nccl.group_end();
  }
  ncclResult_t call_in_two(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream, DeviceWork& work,
                           double share) override {
    // The own part needs no size, so all of it goes with the first one.
    check(nccl.group_start(), "ncclGroupStart");
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      const bool own = peer == rank_;
      send(nccl, communicator, stream, peer, 0, own ? counts_[peer] : first_part(counts_[peer], share));
      receive(nccl, communicator, stream, peer, 0, own ? counts_[rank_] : first_part(counts_[rank_], share));
      if (!own) {
        exchange_size(nccl, communicator, stream, peer);
      }
    }
    check(nccl.group_end(), "the first part");
    work.copy_to_host(host_sizes_.data(), sizes_.data() + ranks_ * size_bytes, ranks_ * size_bytes, stream);
    backend_.synchronize(stream);
    check(nccl.group_start(), "ncclGroupStart");
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) {
        send(nccl, communicator, stream, peer, first_part(counts_[peer], share), counts_[peer]);
        receive(nccl, communicator, stream, peer, first_part(counts_[rank_], share),
                static_cast<std::size_t>(host_sizes_[peer]));
      }
    }
    return nccl.group_end();
  }
  bool correct() override {
    return backend_.equal(receive_->data(), expected_->data(), ranks_ * counts_[rank_] * type_.bytes);
  }

 private:
  static constexpr std::size_t size_bytes = sizeof(std::int64_t);

  // Values of the first part. The second one then starts at an address like those that NCCL moves 16 bytes at a time
  // from: at others it moves single bytes.
  static std::size_t first_part(std::size_t count, double share) {
    constexpr std::size_t aligned = 128;  // values
    return static_cast<std::size_t>(static_cast<double>(count) * share) / aligned * aligned;
  }
  // The values from `begin` to `end` of those for the peer, and of those from it.
  void send(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream, std::size_t peer,
            std::size_t begin, std::size_t end) {
    if (begin < end) {
      check(nccl.send(send_->data() + send_offset(peer) + begin * type_.bytes, end - begin, type_.nccl,
                      static_cast<int>(peer), communicator, stream),
            "ncclSend");
    }
  }
  void receive(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream, std::size_t peer,
               std::size_t begin, std::size_t end) {
    if (begin < end) {
      check(nccl.receive(receive_->data() + receive_offset(peer) + begin * type_.bytes, end - begin, type_.nccl,
                         static_cast<int>(peer), communicator, stream),
            "ncclRecv");
    }
  }
  // How many values the peer gets in all.
  void exchange_size(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream, std::size_t peer) {
    const int other = static_cast<int>(peer);
    check(nccl.send(sizes_.data() + peer * size_bytes, 1, ncclInt64, other, communicator, stream), "ncclSend");
    check(nccl.receive(sizes_.data() + (ranks_ + peer) * size_bytes, 1, ncclInt64, other, communicator, stream),
          "ncclRecv");
  }
  std::size_t send_offset(std::size_t peer) const {
    const auto end = counts_.begin() + static_cast<std::ptrdiff_t>(peer);
    return std::accumulate(counts_.begin(), end, std::size_t{0}) * type_.bytes;
  }
  std::size_t receive_offset(std::size_t peer) const { return peer * counts_[rank_] * type_.bytes; }

  Backend& backend_;
  ElementType type_;
  std::size_t ranks_;
  std::size_t rank_;
  bool grouped_;
  Buffer sizes_;  // call_in_two: those for each rank, then those from each rank
  std::vector<std::int64_t> host_sizes_;
  std::vector<std::size_t> counts_;  // values that each rank gets from every rank
  std::unique_ptr<Buffer> send_;
  std::unique_ptr<Buffer> receive_;
  std::unique_ptr<Buffer> expected_;
};

// Ranks 0 and 1, 2 and 3 and so on send each other a message, in one group.
class SendReceive final : public Exchange {
 public:
  SendReceive(const Options& options, const Job& job, Backend& backend, std::uint64_t bytes)
      : backend_(backend),
        type_(element_type(options.type)),
        peer_(job.rank() ^ 1),
        send_(backend, bytes),
        receive_(backend, bytes),
        expected_(backend, bytes) {
    if (job.size() % 2 != 0) {
      fail("send-recv needs an even number of ranks");
    }
    count_ = bytes / type_.bytes;
    bytes_ = count_ * type_.bytes;
    bus_bytes_ = bytes_;
    operations_ = {bytes_};
    const Values values(options, bytes, "mlp-input-l");
    values.upload(backend, send_.data(), static_cast<std::size_t>(job.rank()), bytes_);
    values.upload(backend, expected_.data(), static_cast<std::size_t>(peer_), bytes_);
  }

  void prepare(bool poisoned) override {
    if (poisoned) {
      backend_.fill(receive_.data(), poison, bytes_);
    }
  }
  ncclResult_t call(const NcclFunctions& nccl, ncclComm_t communicator, cudaStream_t stream) override {
    check(nccl.group_start(), "ncclGroupStart");
    check(nccl.send(send_.data(), count_, type_.nccl, peer_, communicator, stream), "ncclSend");
    check(nccl.receive(receive_.data(), count_, type_.nccl, peer_, communicator, stream), "ncclRecv");
    return nccl.group_end();
  }
  bool correct() override { return backend_.equal(receive_.data(), expected_.data(), bytes_); }

 private:
  Backend& backend_;
  ElementType type_;
  int peer_;
  Buffer send_;
  Buffer receive_;
  Buffer expected_;
};

}  // namespace

ncclResult_t Exchange::call_in_two(const NcclFunctions&, ncclComm_t, cudaStream_t, DeviceWork&, double) {
  fail("only an all-to-all can go in two parts");
}

std::unique_ptr<Exchange> make_exchange(const Options& options, const Job& job, Backend& backend, std::uint64_t bytes) {
  if (options.collective == "all-gather") {
    return std::make_unique<AllGather>(options, job, backend, bytes);
  }
  if (options.collective == "all-to-all") {
    return std::make_unique<AllToAll>(options, job, backend, bytes);
  }
  if (options.collective == "send-recv") {
    return std::make_unique<SendReceive>(options, job, backend, bytes);
  }
  fail("unknown collective '" + options.collective + "'");
}

}  // namespace zipccl::test
