#include "switcher/wire.hpp"

#include <algorithm>
#include <concepts>

#include "switcher/limits.hpp"
#include "switcher/text.hpp"

namespace zipccl::switcher {
namespace {

constexpr std::uint32_t run_bytes = 5;
constexpr std::uint32_t peer_address_bytes = 56;

class Writer {
 public:
  explicit Writer(MessageType type) : bytes_(frame_header_bytes) { bytes_[4] = static_cast<std::uint8_t>(type); }

  template <std::unsigned_integral T>
  void integer(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void flag(bool value) { integer(static_cast<std::uint8_t>(value)); }
  void raw(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void text(std::string_view text) {
    integer(static_cast<std::uint32_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }

  WireBytes frame() && {
    const std::size_t body = bytes_.size() - frame_header_bytes;
    for (std::size_t i = 0; i < 4; ++i) bytes_[i] = static_cast<std::uint8_t>(body >> (8 * i));
    return std::move(bytes_);
  }

 private:
  WireBytes bytes_;
};

// Reads past the end yield zeros and make the whole message invalid.
class Reader {
 public:
  explicit Reader(ByteView bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T integer() {
    T value = 0;
    const ByteView bytes = raw(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) value = static_cast<T>(value | (T{bytes[i]} << (8 * i)));
    return value;
  }
  bool flag() {
    const auto value = integer<std::uint8_t>();
    valid_ = valid_ && value <= 1;
    return value == 1;
  }
  ByteView raw(std::size_t count) {
    valid_ = valid_ && count <= bytes_.size();
    if (!valid_) return {};
    const ByteView taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::string text() {
    const ByteView bytes = raw(integer<std::uint32_t>());
    return {bytes.begin(), bytes.end()};
  }

  void require(bool condition) { valid_ = valid_ && condition; }
  bool valid() const { return valid_; }
  bool complete() const { return valid_ && bytes_.empty(); }

 private:
  ByteView bytes_;
  bool valid_ = true;
};

std::optional<std::uint32_t> max_body_bytes(std::uint8_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::hello:
    case MessageType::child:
      return max_hello_bytes;
    case MessageType::place:
      return 8;
    case MessageType::refuse:
    case MessageType::report:
      return 4 + max_text_bytes;
    case MessageType::result:
      return 5 + max_text_bytes;
    case MessageType::enter:
      return peer_address_bytes;
    case MessageType::peers:
      return 4 + peer_address_bytes * max_rank_count;
    case MessageType::verdict:
      return 64 + max_text_bytes + run_bytes * max_rank_count * max_rank_count;
    case MessageType::acknowledge:
    case MessageType::ask:
    case MessageType::withdraw:
      return 0;
  }
  return std::nullopt;
}

void write_links(Writer* writer, const std::vector<LinkClass>& links) {
  writer->integer(static_cast<std::uint32_t>(links.size()));
  for (auto run = links.begin(); run != links.end();) {
    const auto end = std::find_if(run, links.end(), [run](LinkClass link) { return link != *run; });
    writer->integer(static_cast<std::uint32_t>(end - run));
    writer->integer(static_cast<std::uint8_t>(*run));
    run = end;
  }
}

LinkClass read_link(Reader* reader) {
  const auto link = reader->integer<std::uint8_t>();
  reader->require(link <= static_cast<std::uint8_t>(LinkClass::sockets));
  return static_cast<LinkClass>(link);
}

std::vector<LinkClass> read_links(Reader* reader) {
  std::vector<LinkClass> links;
  const std::uint32_t cells = reader->integer<std::uint32_t>();
  reader->require(cells <= max_rank_count * max_rank_count);
  while (reader->valid() && links.size() < cells) {
    const auto run = reader->integer<std::uint32_t>();
    const LinkClass link = read_link(reader);
    reader->require(run >= 1 && run <= cells - links.size());
    if (reader->valid()) links.insert(links.end(), run, link);
  }
  return links;
}

void write_endpoint(Writer* writer, const Endpoint& endpoint) {
  writer->integer(static_cast<std::uint16_t>(endpoint.ipv6 ? 6 : 4));
  writer->integer(endpoint.port);
  writer->raw(endpoint.address);
}

Endpoint read_endpoint(Reader* reader) {
  Endpoint endpoint;
  const auto family = reader->integer<std::uint16_t>();
  reader->require(family == 4 || family == 6);
  endpoint.ipv6 = family == 6;
  endpoint.port = reader->integer<std::uint16_t>();
  const ByteView address = reader->raw(endpoint.address.size());
  std::copy(address.begin(), address.end(), endpoint.address.begin());
  return endpoint;
}

void write_peer(Writer* writer, const PeerAddress& peer) {
  writer->raw(peer.process);
  write_endpoint(writer, peer.endpoint);
  write_endpoint(writer, peer.listener);
}

PeerAddress read_peer(Reader* reader) {
  PeerAddress peer;
  const ByteView process = reader->raw(peer.process.size());
  std::copy(process.begin(), process.end(), peer.process.begin());
  peer.endpoint = read_endpoint(reader);
  peer.listener = read_endpoint(reader);
  return peer;
}

}  // namespace

bool same_secret(const Ticket& one, const Ticket& other) {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < secret_bytes; ++i) {
    difference = static_cast<std::uint8_t>(difference | (one.secret[i] ^ other.secret[i]));
  }
  return difference == 0;
}

std::optional<FrameHeader> decode_frame_header(ByteView header) {
  Reader reader(header);
  const auto body_bytes = reader.integer<std::uint32_t>();
  const auto type = reader.integer<std::uint8_t>();
  const std::optional<std::uint32_t> limit = max_body_bytes(type);
  if (!reader.complete() || !limit || body_bytes > *limit) return std::nullopt;
  return FrameHeader{static_cast<MessageType>(type), body_bytes};
}

std::optional<HelloPrefix> decode_hello_prefix(ByteView body) {
  Reader reader(body);
  HelloPrefix prefix;
  prefix.protocol = reader.integer<std::uint16_t>();
  prefix.ticket.nonce = reader.integer<std::uint64_t>();
  const ByteView secret = reader.raw(secret_bytes);
  std::copy(secret.begin(), secret.end(), prefix.ticket.secret.begin());
  prefix.rank = reader.integer<std::uint32_t>();
  if (!reader.valid()) return std::nullopt;
  return prefix;
}

std::optional<Descent> decode_descent(ByteView bytes) {
  Reader reader(bytes);
  Descent descent;
  descent.parent = reader.integer<std::uint64_t>();
  const auto kind = reader.integer<std::uint8_t>();
  reader.require(kind == 1 || kind == 2);
  descent.kind = static_cast<Descent::Kind>(kind);
  descent.number = reader.integer<std::uint64_t>();
  descent.subset = reader.integer<std::uint64_t>();
  if (!reader.complete()) return std::nullopt;
  return descent;
}

std::optional<Hello> decode_hello(const HelloPrefix& prefix, const Descent& descent, ByteView rest) {
  Reader reader(rest);
  Hello hello;
  hello.rank = prefix.rank;
  hello.rank_count = reader.integer<std::uint32_t>();
  hello.library_version = reader.text();
  hello.configuration = reader.text();
  hello.host = reader.text();
  hello.shared_memory = reader.text();
  hello.device = reader.text();
  const auto peers = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; i < peers && reader.valid(); ++i) hello.nvlink_peers.push_back(reader.text());
  hello.process = reader.integer<std::uint64_t>();
  hello.staging_bytes = reader.integer<std::uint64_t>();
  hello.max_connections = reader.integer<std::uint32_t>();
  hello.p2p_disabled = reader.flag();
  hello.shm_disabled = reader.flag();
  hello.rdma = reader.flag();
  hello.nonblocking = reader.flag();
  hello.copy_engines = reader.flag();
  hello.refusal = reader.text();
  if (descent.kind == Descent::Kind::split) {
    Hello::Choice& choice = hello.choice.emplace();
    choice.color = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
    choice.key = static_cast<std::int32_t>(reader.integer<std::uint32_t>());
  }
  if (!reader.complete()) return std::nullopt;
  return hello;
}

std::optional<std::string> decode_text(ByteView body) {
  Reader reader(body);
  const std::string text = reader.text();
  if (!reader.complete()) return std::nullopt;
  return one_line(text);
}

std::optional<Verdict> decode_verdict(ByteView body) {
  Reader reader(body);
  Verdict verdict;
  verdict.compressed = reader.flag();
  verdict.reason = one_line(reader.text());
  verdict.staging_bytes = reader.integer<std::uint64_t>();
  verdict.max_connections = reader.integer<std::uint32_t>();
  verdict.copy_engines = reader.flag();
  verdict.slowest_link = read_link(&reader);
  verdict.links = read_links(&reader);
  if (!reader.complete()) return std::nullopt;
  return verdict;
}

std::optional<PeerAddress> decode_enter(ByteView body) {
  Reader reader(body);
  const PeerAddress peer = read_peer(&reader);
  if (!reader.complete()) return std::nullopt;
  return peer;
}

std::optional<std::vector<PeerAddress>> decode_peers(ByteView body) {
  Reader reader(body);
  std::vector<PeerAddress> peers;
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.valid(); ++i) peers.push_back(read_peer(&reader));
  if (!reader.complete()) return std::nullopt;
  return peers;
}

std::optional<ConnectResult> decode_result(ByteView body) {
  Reader reader(body);
  ConnectResult result;
  result.agreed = reader.flag();
  result.reason = one_line(reader.text());
  if (!reader.complete()) return std::nullopt;
  return result;
}

std::optional<Place> decode_place(ByteView body) {
  Reader reader(body);
  Place place;
  place.rank = reader.integer<std::uint32_t>();
  place.rank_count = reader.integer<std::uint32_t>();
  reader.require(place.rank < place.rank_count && place.rank_count <= max_rank_count);
  if (!reader.complete()) return std::nullopt;
  return place;
}

std::optional<WireBytes> encode_hello(const Ticket& ticket, const Hello& hello, const Descent& descent) {
  const bool child = descent.kind != Descent::Kind::none;
  if (hello.choice.has_value() != (descent.kind == Descent::Kind::split)) return std::nullopt;
  Writer writer(child ? MessageType::child : MessageType::hello);
  writer.integer(protocol_version);
  writer.integer(ticket.nonce);
  writer.raw(ticket.secret);
  writer.integer(hello.rank);
  if (child) {
    writer.integer(descent.parent);
    writer.integer(static_cast<std::uint8_t>(descent.kind));
    writer.integer(descent.number);
    writer.integer(descent.subset);
  }
  writer.integer(hello.rank_count);
  writer.text(hello.library_version);
  writer.text(hello.configuration);
  writer.text(hello.host);
  writer.text(hello.shared_memory);
  writer.text(hello.device);
  writer.integer(static_cast<std::uint32_t>(hello.nvlink_peers.size()));
  for (const std::string& peer : hello.nvlink_peers) writer.text(peer);
  writer.integer(hello.process);
  writer.integer(hello.staging_bytes);
  writer.integer(hello.max_connections);
  writer.flag(hello.p2p_disabled);
  writer.flag(hello.shm_disabled);
  writer.flag(hello.rdma);
  writer.flag(hello.nonblocking);
  writer.flag(hello.copy_engines);
  writer.text(hello.refusal);
  if (hello.choice) {
    writer.integer(static_cast<std::uint32_t>(hello.choice->color));
    writer.integer(static_cast<std::uint32_t>(hello.choice->key));
  }
  WireBytes frame = std::move(writer).frame();
  if (frame.size() > frame_header_bytes + max_hello_bytes) return std::nullopt;
  return frame;
}

WireBytes encode_text(MessageType type, std::string_view text) {
  Writer writer(type);
  writer.text(one_line(text));
  return std::move(writer).frame();
}

WireBytes encode_verdict(const Verdict& verdict) {
  Writer writer(MessageType::verdict);
  writer.flag(verdict.compressed);
  writer.text(one_line(verdict.reason));
  writer.integer(verdict.staging_bytes);
  writer.integer(verdict.max_connections);
  writer.flag(verdict.copy_engines);
  writer.integer(static_cast<std::uint8_t>(verdict.slowest_link));
  write_links(&writer, verdict.links);
  return std::move(writer).frame();
}

WireBytes encode_enter(const PeerAddress& address) {
  Writer writer(MessageType::enter);
  write_peer(&writer, address);
  return std::move(writer).frame();
}

WireBytes encode_peers(std::span<const PeerAddress> peers) {
  Writer writer(MessageType::peers);
  writer.integer(static_cast<std::uint32_t>(peers.size()));
  for (const PeerAddress& peer : peers) write_peer(&writer, peer);
  return std::move(writer).frame();
}

WireBytes encode_result(const ConnectResult& result) {
  Writer writer(MessageType::result);
  writer.flag(result.agreed);
  writer.text(one_line(result.reason));
  return std::move(writer).frame();
}

WireBytes encode_place(const Place& place) {
  Writer writer(MessageType::place);
  writer.integer(place.rank);
  writer.integer(place.rank_count);
  return std::move(writer).frame();
}

WireBytes encode_signal(MessageType type) { return Writer(type).frame(); }

}  // namespace zipccl::switcher
