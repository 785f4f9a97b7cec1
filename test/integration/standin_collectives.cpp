// The stand-in NCCL: what collectives and point-to-point operations deliver.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "test/standin/forked_ranks.hpp"
#include "test/unit/catch.hpp"

namespace standin::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes concatenated(std::size_t bytes, int rank_count, int purpose = 0) {
  Bytes all;
  for (int rank = 0; rank < rank_count; ++rank) {
    const Bytes part = pattern(bytes, rank, purpose);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::uint16_t bfloat16(float value) {  // of values that it represents exactly
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

template <class T>
void expect_all(const std::vector<T>& values, T expected) {
  EXPECT(std::all_of(values.begin(), values.end(), [&](T value) { return value == expected; }));
}

void check_all_gather(ncclComm_t comm, int rank, int rank_count, cudaStream_t stream, std::size_t count) {
  const std::size_t bytes = 2 * count;
  const Bytes expected = concatenated(bytes, rank_count, static_cast<int>(count));
  const Bytes own = pattern(bytes, rank, static_cast<int>(count));
  Bytes out_of_place(expected.size());
  EXPECT_SUCCESS(ncclAllGather(own.data(), out_of_place.data(), count, ncclBfloat16, comm, stream));
  Bytes in_place(expected.size());
  std::uint8_t* place = in_place.data() + static_cast<std::size_t>(rank) * bytes;
  std::copy(own.begin(), own.end(), place);
  EXPECT_SUCCESS(ncclAllGather(place, in_place.data(), count, ncclBfloat16, comm, stream));
  synchronize(stream);
  EXPECT(out_of_place == expected);
  EXPECT(in_place == expected);
}

}  // namespace

TEST_CASE("all-gather delivers every rank's values in and out of place") {
  const int rank_count = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{31}, std::size_t{4097}, std::size_t{300001}}) {
      check_all_gather(comm, rank, rank_count, stream, count);
    }
    EXPECT_SUCCESS(ncclAllGather(nullptr, nullptr, 0, ncclBfloat16, comm, stream));
  })));
}

TEST_CASE("broadcast delivers the root's values, whoever it is") {
  const int rank_count = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    for (int root = 0; root < rank_count; ++root) {
      const Bytes source = pattern(500001, rank, root);
      const Bytes expected = pattern(source.size(), root, root);
      Bytes received(source.size());
      EXPECT_SUCCESS(ncclBroadcast(source.data(), received.data(), source.size(), ncclUint8, root, comm, stream));
      Bytes in_place = source;
      EXPECT_SUCCESS(ncclBcast(in_place.data(), in_place.size(), ncclUint8, root, comm, stream));
      synchronize(stream);
      EXPECT(received == expected);
      EXPECT(in_place == expected);
    }
  })));
}

TEST_CASE("reductions of every kind add up") {
  const int rank_count = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    constexpr std::size_t count = 1003;
    const int sum = rank_count * (rank_count + 1) / 2;
    const auto n = static_cast<std::size_t>(rank_count);

    const std::vector<float> floats(count, static_cast<float>(rank + 1));
    std::vector<float> float_sum(count);
    EXPECT_SUCCESS(ncclAllReduce(floats.data(), float_sum.data(), count, ncclFloat32, ncclSum, comm, stream));
    std::vector<std::uint16_t> bfloats(count, bfloat16(static_cast<float>(rank + 1)));
    EXPECT_SUCCESS(ncclAllReduce(bfloats.data(), bfloats.data(), count, ncclBfloat16, ncclMax, comm, stream));
    std::vector<std::int64_t> longs(count, rank + 1);
    EXPECT_SUCCESS(ncclAllReduce(longs.data(), longs.data(), count, ncclInt64, ncclSum, comm, stream));
    const std::vector<std::uint16_t> halves(count, rank % 2 == 0 ? 0x3c00 : 0xc000);  // 1 and -2
    std::vector<std::uint16_t> half_min(count);
    EXPECT_SUCCESS(ncclAllReduce(halves.data(), half_min.data(), count, ncclFloat16, ncclMin, comm, stream));

    const std::vector<std::int32_t> parts(count * n, rank + 1);
    std::vector<std::int32_t> part(count);
    EXPECT_SUCCESS(ncclReduceScatter(parts.data(), part.data(), count, ncclInt32, ncclSum, comm, stream));
    const std::vector<double> doubles(count, rank + 1);
    std::vector<double> at_root(count, -1);
    const int root = rank_count - 1;
    EXPECT_SUCCESS(ncclReduce(doubles.data(), at_root.data(), count, ncclFloat64, ncclSum, root, comm, stream));
    synchronize(stream);

    expect_all(float_sum, static_cast<float>(sum));
    expect_all(bfloats, bfloat16(static_cast<float>(rank_count)));
    expect_all(longs, std::int64_t{sum});
    expect_all(half_min, std::uint16_t{static_cast<std::uint16_t>(rank_count == 1 ? 0x3c00 : 0xc000)});
    expect_all(part, std::int32_t{sum});
    expect_all(at_root, rank == root ? static_cast<double>(sum) : -1.0);
  })));
}

TEST_CASE("averages and pre-multiplied sums scale every value before adding") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    std::vector<float> mean(5, static_cast<float>(rank + 1));
    EXPECT_SUCCESS(ncclAllReduce(mean.data(), mean.data(), mean.size(), ncclFloat32, ncclAvg, comm, stream));
    float factor = 0.25F;
    ncclRedOp_t scaled_sum = ncclSum;
    EXPECT_SUCCESS(ncclRedOpCreatePreMulSum(&scaled_sum, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    std::vector<float> scaled(5, 8.0F);
    EXPECT_SUCCESS(ncclAllReduce(scaled.data(), scaled.data(), scaled.size(), ncclFloat32, scaled_sum, comm, stream));
    EXPECT_SUCCESS(ncclRedOpDestroy(scaled_sum, comm));  // the call above keeps its operator
    factor = 0;
    EXPECT_RESULT(ncclAllReduce(scaled.data(), scaled.data(), 5, ncclFloat32, scaled_sum, comm, stream),
                  ncclInvalidArgument);
    // Half a unit in the last place: to even.
    std::vector<std::uint16_t> rounded(5, bfloat16(rank == 0 ? 1.0F : 1.0F / 256));
    EXPECT_SUCCESS(ncclAllReduce(rounded.data(), rounded.data(), 5, ncclBfloat16, ncclSum, comm, stream));
    synchronize(stream);
    expect_all(mean, 1.5F);
    expect_all(scaled, 4.0F);
    expect_all(rounded, bfloat16(1.0F));
  })));
}

TEST_CASE("all-to-all, gather and scatter move each part to its place") {
  const int rank_count = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    constexpr std::size_t count = 70001;
    const auto n = static_cast<std::size_t>(rank_count);
    const Bytes parts = concatenated(count, rank_count, rank);  // part p: pattern(count, p, rank)
    Bytes exchanged(count * n);
    EXPECT_SUCCESS(ncclAlltoAll(parts.data(), exchanged.data(), count, ncclUint8, comm, stream));
    const int root = rank_count / 2;
    Bytes gathered(count * n);
    const Bytes own = pattern(count, rank, 99);
    EXPECT_SUCCESS(
        ncclGather(own.data(), rank == root ? gathered.data() : nullptr, count, ncclUint8, root, comm, stream));
    Bytes scattered(count);
    EXPECT_SUCCESS(
        ncclScatter(rank == root ? parts.data() : nullptr, scattered.data(), count, ncclUint8, root, comm, stream));
    synchronize(stream);
    for (int peer = 0; peer < rank_count; ++peer) {
      const Bytes from_peer = pattern(count, rank, peer);
      EXPECT(std::equal(from_peer.begin(), from_peer.end(),
                        exchanged.begin() + static_cast<std::ptrdiff_t>(count) * peer));
    }
    if (rank == root) EXPECT(gathered == concatenated(count, rank_count, 99));
    EXPECT(scattered == pattern(count, rank, root));
  })));
}

TEST_CASE("sends and receives match per pair and in order, alone, grouped and with the rank itself") {
  const int rank_count = GENERATE(2, 3, 8);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    const int next = (rank + 1) % rank_count;
    const int previous = (rank + rank_count - 1) % rank_count;
    const Bytes large = pattern(3000001, rank);  // more than a connection buffers
    const Bytes small = pattern(7, rank);
    Bytes from_previous(large.size());
    Bytes small_from_previous(small.size());
    Bytes from_self(small.size());
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclSend(large.data(), large.size(), ncclUint8, next, comm, stream));
    EXPECT_SUCCESS(ncclSend(small.data(), small.size(), ncclUint8, next, comm, stream));
    EXPECT_SUCCESS(ncclSend(small.data(), small.size(), ncclUint8, rank, comm, stream));
    EXPECT_SUCCESS(ncclRecv(from_previous.data(), large.size(), ncclUint8, previous, comm, stream));
    EXPECT_SUCCESS(ncclRecv(small_from_previous.data(), small.size(), ncclUint8, previous, comm, stream));
    EXPECT_SUCCESS(ncclRecv(from_self.data(), small.size(), ncclUint8, rank, comm, stream));
    EXPECT_SUCCESS(ncclGroupEnd());
    synchronize(stream);
    EXPECT(from_previous == pattern(large.size(), previous));
    EXPECT(small_from_previous == pattern(small.size(), previous));
    EXPECT(from_self == small);

    std::int32_t token = rank == 0 ? 41 : 0;  // passed around, each rank adding one; types fold into bytes
    if (rank > 0) EXPECT_SUCCESS(ncclRecv(&token, 1, ncclInt32, previous, comm, stream));
    synchronize(stream);
    token += 1;
    EXPECT_SUCCESS(ncclSend(&token, 4, ncclUint8, next, comm, stream));
    if (rank == 0) EXPECT_SUCCESS(ncclRecv(&token, 1, ncclInt32, previous, comm, stream));
    synchronize(stream);
    EXPECT(token == (rank == 0 ? 41 + rank_count : 42 + rank));
    EXPECT_RESULT(ncclSend(&token, 1, ncclInt32, rank, comm, stream), ncclInvalidUsage);
  })));
}

TEST_CASE("a group launches at its outermost end, over several communicators and streams") {
  const int rank_count = GENERATE(2, 4);
  CAPTURE(rank_count);
  REQUIRE(all_zero(run_communicators(rank_count, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
    ncclComm_t second = nullptr;
    EXPECT_SUCCESS(ncclCommSplit(comm, 0, -rank, &second, nullptr));  // the same ranks in reverse
    {
      const ScopedStream other;
      constexpr std::size_t count = 200001;
      const Bytes own = pattern(count, rank);
      Bytes first_result(count * static_cast<std::size_t>(rank_count));
      Bytes second_result(first_result.size());
      Bytes third_result(first_result.size());
      EXPECT_SUCCESS(ncclGroupStart());
      EXPECT_SUCCESS(ncclAllGather(own.data(), first_result.data(), count, ncclUint8, comm, stream));
      EXPECT_SUCCESS(ncclGroupStart());
      EXPECT_SUCCESS(ncclAllGather(own.data(), second_result.data(), count, ncclUint8, second, other.get()));
      EXPECT_SUCCESS(ncclGroupEnd());
      EXPECT_SUCCESS(ncclAllGather(own.data(), third_result.data(), count, ncclUint8, comm, other.get()));
      zipccl_host_runtime.device_synchronize();
      EXPECT(first_result == Bytes(first_result.size()));  // nothing has been launched yet
      EXPECT_SUCCESS(ncclGroupEnd());
      synchronize(stream);  // the streams of one communicator are joined
      const Bytes expected = concatenated(count, rank_count);
      EXPECT(first_result == expected);
      EXPECT(third_result == expected);
      other.synchronize();
      Bytes reversed;
      for (int peer = rank_count - 1; peer >= 0; --peer) {
        const Bytes part = pattern(count, peer);
        reversed.insert(reversed.end(), part.begin(), part.end());
      }
      EXPECT(second_result == reversed);
    }
    EXPECT_SUCCESS(ncclCommDestroy(second));
  })));
}

TEST_CASE("communicators on different streams progress independently") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    ncclComm_t second = nullptr;
    EXPECT_SUCCESS(ncclCommSplit(comm, 0, rank, &second, nullptr));
    {
      const ScopedStream other;
      // Opposite orders on the two ranks, which one stream could not serve.
      std::int32_t one[2] = {};
      std::int32_t two[2] = {};
      const std::int32_t own = rank;
      const auto first = [&] { EXPECT_SUCCESS(ncclAllGather(&own, one, 1, ncclInt32, comm, stream)); };
      const auto last = [&] { EXPECT_SUCCESS(ncclAllGather(&own, two, 1, ncclInt32, second, other.get())); };
      if (rank == 0) first();
      last();
      if (rank == 0) synchronize(stream);
      other.synchronize();
      if (rank == 1) first();
      synchronize(stream);
      EXPECT(one[1] == 1);
      EXPECT(two[1] == 1);
    }
    EXPECT_SUCCESS(ncclCommDestroy(second));
  })));
}

TEST_CASE("an error inside a group fails the whole group, and a simulated one launches nothing") {
  REQUIRE(all_zero(run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const std::int32_t own = rank + 1;
    std::int32_t all[2] = {};
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclAllGather(&own, all, 1, ncclInt32, comm, stream));
    EXPECT_RESULT(ncclAllGather(nullptr, all, 1, ncclInt32, comm, stream), ncclInvalidArgument);
    EXPECT_RESULT(ncclGroupEnd(), ncclInvalidArgument);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclAllGather(&own, all, 1, ncclInt32, comm, stream));
    EXPECT_SUCCESS(ncclGroupSimulateEnd(&info));
    EXPECT(info.estimatedTime >= 0);
    synchronize(stream);
    EXPECT(all[0] == 0);
    EXPECT_RESULT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_SUCCESS(ncclAllGather(&own, all, 1, ncclInt32, comm, stream));  // the communicator is none the worse
    synchronize(stream);
    EXPECT(all[0] == 1);
    EXPECT(all[1] == 2);
  })));
}

TEST_CASE("ranks that call different collectives are told so") {
  const auto endings = run_communicators(2, [](ncclComm_t comm, int rank, cudaStream_t stream) {
    std::vector<float> data(64, 0);
    if (rank == 0) {
      EXPECT_SUCCESS(ncclAllGather(data.data(), data.data(), 32, ncclFloat32, comm, stream));
    } else {
      EXPECT_SUCCESS(ncclAllReduce(data.data(), data.data(), 32, ncclFloat32, ncclSum, comm, stream));
    }
    synchronize(stream);
    EXPECT(wait_for_async_error(comm) != ncclSuccess);
    EXPECT(ncclGetLastError(comm) != std::string());
  });
  REQUIRE(all_zero(endings));
}

}  // namespace standin::test
