#include "test/unit/codec_gather.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "codec/format.hpp"
#include "codec/host_exchange.hpp"

namespace zipccl::test {
namespace {

using codec::Layout;

constexpr std::uint64_t value_bytes = sizeof(std::uint16_t);
constexpr std::uint64_t vector_values = 8;  // of an aligned address's alignment
constexpr std::uint64_t base_sequence = 70;
constexpr std::uint64_t first_call = 3;  // what the sequence counter holds
constexpr std::uint8_t stale = 0x42;     // tails that claim entries in the overflow, as a former message's might

template <typename T>
T* unaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + 1);
}

void require_ok(Status status) {
  if (status != Status::ok) {
    throw std::runtime_error("a job was refused: " + std::to_string(static_cast<int>(status)));
  }
}

class Gather {
 public:
  Gather(Machine& machine, const GatherShape& shape, std::span<const Fill> fills, Beside form);
  ~Gather();
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  void run();
  std::string check();

  codec::EncodeJob encode_job(std::uint32_t rank, std::size_t chunk) const;
  codec::ReceiveJob receive_job(std::uint32_t rank, std::size_t chunk) const;
  std::string check_untouched();  // of rank 0, whose jobs have been refused

 private:
  struct Rank : OverflowEnd {
    void* scratch;
    std::uint64_t* words;           // sequence counter, lock, two start times
    codec::MessageHeader* headers;  // of the own messages, chunks in turn
    std::uint16_t* input;
    std::uint16_t* output;
    // A chunk's messages, by rank: where it can be, the own one lies inside that of the chunk before.
    std::vector<std::uint8_t*> rows;
    std::vector<Block> sent;          // the own messages, by chunk
    std::vector<Message> references;  // by chunk
    codec::ExchangeCounters expected{};
  };

  template <typename T>
  T* filled(std::size_t bytes, int byte, std::size_t offset = 0) {
    auto* memory = static_cast<std::uint8_t*>(machine_.allocate(bytes + offset)) + offset;
    const std::vector<std::uint8_t> content(bytes, static_cast<std::uint8_t>(byte));
    machine_.upload(memory, content.data(), bytes);
    return reinterpret_cast<T*>(memory);
  }
  std::size_t chunks() const { return shape_.counts.size(); }
  Layout layout(std::size_t chunk) const { return Layout::of(shape_.counts[chunk], shape_.pool_fraction); }
  std::uint64_t place(std::size_t chunk) const {  // of its values in a shard
    return std::accumulate(shape_.counts.begin(), shape_.counts.begin() + static_cast<std::ptrdiff_t>(chunk),
                           std::uint64_t{0});
  }
  bool lists_encodes() const { return form_ == Beside::list_and_row || form_ == Beside::lists; }
  bool lists_receives() const { return form_ == Beside::message_and_list || form_ == Beside::lists; }
  void step(std::uint32_t rank, std::size_t chunk);
  void expect(std::size_t chunk);
  std::string check_message(std::uint32_t rank, std::size_t chunk);
  std::string check_rank(std::uint32_t rank);

  Machine& machine_;
  GatherShape shape_;
  Beside form_;
  std::uint64_t stride_;  // of shards, in values
  std::vector<std::vector<std::uint16_t>> values_;
  std::vector<Rank> ranks_;
  std::unique_ptr<OverflowServer> server_;
};

Gather::Gather(Machine& machine, const GatherShape& shape, std::span<const Fill> fills, Beside form)
    : machine_(machine), shape_(shape), form_(form), values_(shape.ranks), ranks_(shape.ranks) {
  const std::uint64_t shard = place(chunks());
  // Shards a little apart, each as aligned as the first one.
  stride_ = (shard / vector_values + 2) * vector_values;
  std::vector<OverflowServer::Sender> senders;
  std::vector<OverflowServer::Receiver> receivers;
  for (std::uint32_t r = 0; r < shape.ranks; ++r) {
    Rank& rank = ranks_[r];
    rank.allocate(machine, shape.outbox_capacity, shape.mailbox_capacity);
    rank.scratch = filled<void>(codec::encode_scratch_bytes, 0);
    rank.words = filled<std::uint64_t>(4 * sizeof(std::uint64_t), 0);
    machine.upload(rank.words, &first_call, sizeof(first_call));
    rank.headers = filled<codec::MessageHeader>(2 * sizeof(codec::MessageHeader), stale);
    for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
      const auto values = make_values(fills[chunk * shape.ranks + r], shape.counts[chunk], 100 * chunk + r);
      values_[r].insert(values_[r].end(), values.begin(), values.end());
      rank.references.push_back(
          encode(values, shape.pool_fraction, base_sequence + first_call, static_cast<std::uint32_t>(chunk)));
      const std::uint64_t bytes = layout(chunk).static_bytes;
      const std::uint64_t former_bytes = chunk != 0 ? layout(chunk - 1).static_bytes : 0;
      rank.rows.push_back(!lists_encodes() && bytes <= former_bytes ? rank.rows[chunk - 1] + r * (former_bytes - bytes)
                                                                    : filled<std::uint8_t>(shape.ranks * bytes, stale));
    }
    rank.input = filled<std::uint16_t>((shard + 1) * value_bytes, 0, shape.input_offset * value_bytes);
    machine.upload(rank.input, values_[r].data(), shard * value_bytes);
    rank.output = filled<std::uint16_t>(shape.ranks * stride_ * value_bytes, 0, shape.output_offset * value_bytes);
    const std::vector<std::uint16_t> poison(shape.ranks * stride_, untouched);
    machine.upload(rank.output, poison.data(), poison.size() * value_bytes);
    senders.push_back({r, rank.outbox});
    receivers.push_back({r, rank.mailbox, shape.mailbox_capacity});
  }
  machine.finish();
  server_ = std::make_unique<OverflowServer>(senders, receivers);
}

Gather::~Gather() {
  machine_.finish();
  server_.reset();
  machine_.free_all();
}

codec::EncodeJob Gather::encode_job(std::uint32_t r, std::size_t chunk) const {
  const Rank& rank = ranks_[r];
  codec::EncodeJob job;
  job.values = rank.input + place(chunk);
  job.count = shape_.counts[chunk];
  job.pool_fraction = shape_.pool_fraction;
  job.message = rank.rows[chunk] + r * layout(chunk).static_bytes;
  job.scratch = rank.scratch;
  job.sequence = base_sequence;
  job.sequence_counter = rank.words;
  job.chunk = static_cast<std::uint32_t>(chunk);
  rank.attach(&job);
  job.outbox_lock = reinterpret_cast<std::uint32_t*>(rank.words + 1);
  job.started_ns = rank.words + 2 + chunk % 2;
  job.header_copy = rank.headers + chunk % 2;
  return job;
}

codec::ReceiveJob Gather::receive_job(std::uint32_t r, std::size_t chunk) const {
  const Rank& rank = ranks_[r];
  codec::ReceiveJob job;
  job.decode.messages = rank.rows[chunk];
  job.decode.message_stride = layout(chunk).static_bytes;
  job.decode.message_count = shape_.ranks;
  job.decode.skip = r;
  job.decode.values = rank.output + place(chunk);
  job.decode.value_stride = stride_ * value_bytes;
  job.decode.count = shape_.counts[chunk];
  job.decode.pool_fraction = shape_.pool_fraction;
  job.decode.sequence = base_sequence;
  job.decode.sequence_counter = rank.words;
  job.decode.chunk = static_cast<std::uint32_t>(chunk);
  rank.attach(&job);
  job.started_ns = rank.words + 2 + chunk % 2;
  job.advance = chunk + 1 == chunks() ? rank.words : nullptr;
  job.own_header = lists_encodes() ? nullptr : rank.headers + chunk % 2;  // lists leave no copy
  return job;
}

// One rank's encode of a chunk, if there is one, and its receive job of the one before, likewise.
void Gather::step(std::uint32_t r, std::size_t chunk) {
  codec::EncodeJob encode;
  codec::EncodeItem sent;
  const bool encodes = chunk < chunks();
  if (encodes) {
    encode = encode_job(r, chunk);
    if (lists_encodes()) {
      sent = {encode.values, encode.count, encode.message, codec::all_receivers};
      encode.items = &sent;
      encode.item_count = 1;
    }
  }
  codec::ReceiveJob receive;
  std::vector<codec::DecodeItem> received;
  if (chunk != 0) {
    receive = receive_job(r, chunk - 1);
    if (lists_receives()) {
      for (std::uint32_t sender = 0; sender < shape_.ranks; ++sender) {
        if (sender != r) {
          received.push_back({ranks_[r].rows[chunk - 1] + sender * layout(chunk - 1).static_bytes,
                              ranks_[r].output + sender * stride_ + place(chunk - 1), receive.decode.count, sender});
        }
      }
      received.reserve(1);  // an empty list has an address too
      receive.decode.items = received.data();
      receive.decode.item_count = static_cast<std::uint32_t>(received.size());
    }
  }
  if (!encodes || chunk == 0 || form_ == Beside::apart) {
    if (encodes) {
      require_ok(machine_.run(encode));
    }
    if (chunk != 0) {
      require_ok(machine_.run(receive));
    }
    return;
  }
  if (form_ == Beside::nothing_and_row) {
    require_ok(machine_.run(encode));
    encode.items = &sent;
    encode.item_count = 0;
  } else if (form_ == Beside::message_and_nothing) {
    codec::ReceiveJob nothing = receive;
    nothing.decode.message_count = 0;
    nothing.advance = nullptr;
    require_ok(machine_.run(receive));
    receive = nothing;
    ++ranks_[r].expected.finished;
  }
  require_ok(machine_.run(encode, receive));
}

void Gather::run() {
  for (std::size_t chunk = 0; chunk <= chunks(); ++chunk) {
    for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
      step(r, chunk);
    }
    for (std::uint32_t s = 0; chunk < chunks() && s < shape_.ranks; ++s) {
      for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
        const std::uint64_t bytes = layout(chunk).static_bytes;
        if (r != s) {
          machine_.copy(ranks_[r].rows[chunk] + s * bytes, ranks_[s].rows[chunk] + s * bytes, bytes);
        }
      }
    }
    machine_.finish();
    for (std::uint32_t r = 0; chunk < chunks() && r < shape_.ranks; ++r) {
      const std::uint64_t bytes = layout(chunk).static_bytes;
      machine_.download(ranks_[r].sent.emplace_back(bytes).data(), ranks_[r].rows[chunk] + r * bytes, bytes);
    }
  }
  for (const Rank& rank : ranks_) {  // a record's last piece, which nobody but the server waits for
    while (codec::load_acquire(rank.outbox->taken) != rank.outbox->posted) {
      std::this_thread::yield();
    }
  }
}

// What the machine has made of a chunk, against the host engine's: the order of entries is free where the machine is
// not canonical.
std::string Gather::check_message(std::uint32_t r, std::size_t chunk) {
  Message& reference = ranks_[r].references[chunk];
  const Layout sections = layout(chunk);
  Message got{.count = reference.count,
              .pool_fraction = reference.pool_fraction,
              .sequence = reference.sequence,
              .chunk = reference.chunk,
              .bytes = Block(ranks_[r].sent[chunk].bytes()),
              .overflow = Block(reference.overflow.size())};
  const auto same = [&](std::uint64_t begin, std::uint64_t end) {
    return std::memcmp(got.bytes.data() + begin, reference.bytes.data() + begin, end - begin) == 0;
  };
  if (machine_.is_canonical() && !same(0, sections.static_bytes)) {
    return "message";
  }
  codec::MessageHeader header = got.header();
  if ((header.overflow_tiles != 0) != (reference.overflow.size() != 0)) {
    return "overflow tiles";
  }
  header.overflow_tiles = reference.header().overflow_tiles;
  const codec::MessageHeader expected = reference.header();
  if (std::memcmp(&header, &expected, sizeof(header)) != 0 || !same(sections.planes, sections.tails)) {
    return "header, planes or codes";
  }
  for (std::uint64_t tile = 0; tile < sections.tiles; ++tile) {
    const bool has_entry = (reference.tail(tile)[1] & 3) != 0;
    if (std::memcmp(got.tail(tile), reference.tail(tile), codec::tail_bytes - (has_entry ? 4 : 0)) != 0) {
      return "tail";
    }
  }
  std::size_t found = 0;
  for (const OverflowServer::Record& record : server_->records()) {
    if (record.sender == r && record.chunk == chunk && record.sequence == reference.sequence &&
        record.receiver == codec::all_receivers && record.bytes.size() == got.overflow.size()) {
      std::memcpy(got.overflow.data(), record.bytes.data(), record.bytes.size());
      ++found;
    }
  }
  if (found != (got.overflow.size() != 0 ? 1 : 0)) {
    return "record";
  }
  const auto values = std::span(values_[r]).subspan(place(chunk), reference.count);
  return std::ranges::equal(decode(got).values, values) ? "" : "values of the message";
}

// What a rank's receive jobs count for a chunk.
void Gather::expect(std::size_t chunk) {
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    codec::ExchangeCounters& expected = ranks_[r].expected;
    ++expected.finished;
    for (std::uint32_t s = 0; s < shape_.ranks; ++s) {
      if (lists_receives() && s == r) {
        continue;  // lists lack the own message
      }
      const Message& message = ranks_[s].references[chunk];
      expected.values += message.count;
      expected.escapes += message.header().escapes;
      expected.overflow_messages += message.overflow.size() != 0;
      expected.overflow_bytes += s == r ? 0 : message.overflow.size();
    }
  }
}

std::string Gather::check_rank(std::uint32_t r) {
  const Rank& rank = ranks_[r];
  std::vector<std::uint16_t> expected(shape_.ranks * stride_, untouched);
  for (std::uint32_t s = 0; s < shape_.ranks; ++s) {
    if (s != r) {
      std::ranges::copy(values_[s], expected.begin() + static_cast<std::ptrdiff_t>(s * stride_));
    }
  }
  std::vector<std::uint16_t> got(expected.size());
  machine_.download(got.data(), rank.output, got.size() * value_bytes);
  if (got != expected) {
    return "values";
  }
  const codec::ExchangeCounters& counters = *rank.counters;
  if (counters.fault() != Status::ok || counters.finished != rank.expected.finished ||
      counters.values != rank.expected.values || counters.escapes != rank.expected.escapes ||
      counters.overflow_messages != rank.expected.overflow_messages ||
      counters.overflow_bytes != rank.expected.overflow_bytes) {
    return "counters";
  }
  std::vector<std::uint8_t> scratch(codec::encode_scratch_bytes);
  machine_.download(scratch.data(), rank.scratch, scratch.size());
  std::uint64_t words[4];
  machine_.download(words, rank.words, sizeof(words));
  if (std::ranges::any_of(scratch, [](std::uint8_t byte) { return byte != 0; }) || words[0] != first_call + 1 ||
      words[1] != 0 || words[2] == 0 || (chunks() > 1 && words[3] == 0)) {
    return "scratch, sequence counter, lock or start time";
  }
  return {};
}

std::string Gather::check() {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    expect(chunk);
    for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
      if (const std::string wrong = check_message(r, chunk); !wrong.empty()) {
        return "chunk " + std::to_string(chunk) + " of rank " + std::to_string(r) + ": " + wrong;
      }
    }
  }
  for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
    if (const std::string wrong = check_rank(r); !wrong.empty()) {
      return "rank " + std::to_string(r) + ": " + wrong;
    }
  }
  return server_->broken == 0 ? "" : "pieces";
}

std::string Gather::check_untouched() {
  machine_.finish();
  const Rank& rank = ranks_[0];
  std::vector<std::uint8_t> message(layout(1).static_bytes);
  machine_.download(message.data(), rank.rows[1], message.size());
  std::vector<std::uint16_t> output(shape_.ranks * stride_);
  machine_.download(output.data(), rank.output, output.size() * value_bytes);
  std::uint64_t words[4];
  machine_.download(words, rank.words, sizeof(words));
  const bool clean = std::ranges::all_of(message, [](std::uint8_t byte) { return byte == stale; }) &&
                     std::ranges::all_of(output, [](std::uint16_t value) { return value == untouched; }) &&
                     rank.counters->finished == 0 && rank.outbox->posted == 0 && words[2] == 0 && words[3] == 0;
  return clean ? "" : "a refused job has run, or the one beside it";
}

}  // namespace

std::string gather(Machine& machine, const GatherShape& shape, std::span<const Fill> fills, Beside form) {
  Gather call(machine, shape, fills, form);
  call.run();
  return call.check();
}

std::string refuse_beside(Machine& machine) {
  const Fill fills[] = {Fill::normal, Fill::normal, Fill::random_bits, Fill::normal};
  const GatherShape shape{.counts = {3000, 3000}};
  Gather call(machine, shape, fills, Beside::message_and_row);
  using Change = std::function<void(codec::EncodeJob&, codec::ReceiveJob&)>;
  const Change changes[] = {
      [](codec::EncodeJob& encode, codec::ReceiveJob&) { encode.values = nullptr; },
      [](codec::EncodeJob& encode, codec::ReceiveJob&) { encode.message = nullptr; },
      [](codec::EncodeJob& encode, codec::ReceiveJob&) { encode.outbox_lock = nullptr; },
      [](codec::EncodeJob& encode, codec::ReceiveJob&) { encode.pool_fraction = codec::max_pool_fraction + 1; },
      [](codec::EncodeJob& encode, codec::ReceiveJob&) { encode.header_copy = unaligned(encode.header_copy); },
      [](codec::EncodeJob&, codec::ReceiveJob& receive) { receive.own_header = unaligned(receive.own_header); },
      [](codec::EncodeJob&, codec::ReceiveJob& receive) { receive.decode.values = nullptr; },
      [](codec::EncodeJob&, codec::ReceiveJob& receive) { receive.decode.message_stride += 1; },
      [](codec::EncodeJob&, codec::ReceiveJob& receive) { receive.counters = nullptr; },
      [](codec::EncodeJob&, codec::ReceiveJob& receive) { receive.mailbox = nullptr; },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    for (const bool lists : {false, true}) {  // one launch, or two
      codec::EncodeJob encode = call.encode_job(0, 1);
      codec::ReceiveJob receive = call.receive_job(0, 0);
      changes[i](encode, receive);
      const codec::EncodeItem sent{encode.values, encode.count, encode.message, codec::all_receivers};
      if (lists) {
        encode.items = &sent;
        encode.item_count = 1;
      }
      if (machine.run(encode, receive) != Status::invalid_argument) {
        return "change " + std::to_string(i) + " is not refused";
      }
      if (const std::string wrong = call.check_untouched(); !wrong.empty()) {
        return "change " + std::to_string(i) + ": " + wrong;
      }
    }
  }
  return {};
}

}  // namespace zipccl::test
