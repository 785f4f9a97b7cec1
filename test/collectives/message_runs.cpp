#include "test/collectives/message_runs.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "test/support/ranks.hpp"

namespace zipccl::test {

namespace {

constexpr std::uint8_t poison = 0xA5;

std::size_t bytes_of(const Message& message) { return message.count * sizeof(std::uint16_t); }

}  // namespace

MessageRun::MessageRun(Backend& backend, int own, const std::vector<Message>& messages)
    : backend_(backend), own_(own), messages_(messages) {
  for (const Message& message : messages_) {
    sends_.push_back(message.from == own ? make_end(message) : End{});
    receives_.push_back(message.to == own ? make_end(message) : End{});
  }
  fill();
}

MessageRun::~MessageRun() {
  for (const auto* ends : {&sends_, &receives_}) {
    for (const End& end : *ends) {
      if (end.memory != nullptr) {
        backend_.release(end.memory);
      }
    }
  }
}

MessageRun::End MessageRun::make_end(const Message& message) const {
  End end;
  end.memory = static_cast<std::byte*>(backend_.allocate(bytes_of(message) + shift(message) + guard));
  end.data = end.memory + shift(message);
  return end;
}

void MessageRun::fill() {
  for (std::size_t index = 0; index < messages_.size(); ++index) {
    const Message& message = messages_[index];
    if (sends_[index].memory != nullptr) {
      const std::vector<std::uint16_t> values = make_data(message.data, message.count, message.seed);
      backend_.upload(sends_[index].data, values.data(), bytes_of(message));
    }
    if (receives_[index].memory != nullptr) {
      backend_.fill(receives_[index].memory, poison, bytes_of(message) + shift(message) + guard);
    }
  }
}

void MessageRun::refill(std::uint64_t seed) {
  for (Message& message : messages_) {
    message.seed = ++seed;
  }
  fill();
}

void MessageRun::send(std::size_t index, ncclComm_t communicator, cudaStream_t stream) {
  const Message& message = messages_[index];
  if (sends_[index].memory != nullptr) {
    check_nccl(ncclSend(sends_[index].data, message.as_bytes ? bytes_of(message) : message.count,
                        message.as_bytes ? ncclUint8 : ncclBfloat16, message.to, communicator, stream),
               "ncclSend");
  }
}

void MessageRun::receive(std::size_t index, ncclComm_t communicator, cudaStream_t stream) {
  const Message& message = messages_[index];
  if (receives_[index].memory != nullptr) {
    check_nccl(ncclRecv(receives_[index].data, message.as_bytes ? bytes_of(message) : message.count,
                        message.as_bytes ? ncclUint8 : ncclBfloat16, message.from, communicator, stream),
               "ncclRecv");
  }
}

void MessageRun::everything(ncclComm_t communicator, cudaStream_t stream) {
  for (std::size_t index = 0; index < messages_.size(); ++index) {
    send(index, communicator, stream);
    receive(index, communicator, stream);
  }
}

int MessageRun::check() {
  int faults = 0;
  for (std::size_t index = 0; index < messages_.size(); ++index) {
    const Message& message = messages_[index];
    if (receives_[index].memory == nullptr) {
      continue;
    }
    const std::size_t bytes = bytes_of(message);
    std::vector<std::byte> expected(bytes + shift(message) + guard, std::byte{poison});
    const std::vector<std::uint16_t> values = make_data(message.data, message.count, message.seed);
    if (bytes > 0) {
      std::memcpy(expected.data() + shift(message), values.data(), bytes);
    }
    std::vector<std::byte> received(expected.size());
    backend_.download(received.data(), receives_[index].memory, received.size());
    const auto [got, wanted] = std::mismatch(received.begin(), received.end(), expected.begin());
    if (got != received.end()) {
      std::fprintf(
          stderr, "message %zu, rank %d to %d, %s, %zu values%s, offset %zu: byte %td is %02x, expected %02x\n", index,
          message.from, message.to, to_string(message.data), message.count, message.as_bytes ? " as bytes" : "",
          message.offset, got - received.begin() - static_cast<std::ptrdiff_t>(shift(message)),
          static_cast<unsigned>(*got), static_cast<unsigned>(*wanted));
      ++faults;
    }
  }
  return faults;
}

}  // namespace zipccl::test
