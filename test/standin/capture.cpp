#include "test/standin/capture.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "test/standin/error.hpp"

namespace standin {

Graph::Graph(std::vector<Node> nodes, std::size_t branches, std::size_t points)
    : nodes_(std::move(nodes)), points_(points) {
  for (std::size_t branch = 0; branch < branches; ++branch) branches_.push_back(std::make_unique<Stream>());
}

Graph::~Graph() {
  for (const auto& branch : branches_) branch->drain();
}

void Graph::launch(Stream* stream) {
  const std::lock_guard lock(mutex_);
  if (stream->capture() != nullptr) throw Error(ncclUnhandledCudaError, "a graph is launched within a capture");
  for (const Point& end : ends_) stream->wait_for(end);
  const Point begin = stream->record();
  for (const auto& branch : branches_) branch->wait_for(begin);
  const auto finish = [&] {
    ends_.clear();
    for (const auto& branch : branches_) ends_.push_back(branch->record());
    for (const Point& end : ends_) stream->wait_for(end);
  };
  try {
    enqueue_nodes();
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

void Graph::enqueue_nodes() {
  std::vector<Point> points(points_);
  for (const Node& node : nodes_) {
    Stream& branch = *branches_[node.branch];
    switch (node.kind) {
      case Node::Kind::issue:
        branch.issue(node.issue);
        break;
      case Node::Kind::point:
        points[node.point] = branch.record();
        break;
      case Node::Kind::wait:
        branch.wait_for(points[node.point]);
        break;
      case Node::Kind::external_record:
        node.event->record(branch.record());
        break;
      case Node::Kind::external_wait:
        branch.wait_for(node.event->latest());
        break;
    }
  }
}

namespace {

unsigned long long next_number() {
  static std::atomic<unsigned long long> last = 0;
  return ++last;
}

}  // namespace

Capture::Capture(const void* origin) : origin_(origin), number_(next_number()) { add_branch(); }

bool Capture::active() {
  const std::lock_guard lock(mutex_);
  return !ended_;
}

bool Capture::invalid() {
  const std::lock_guard lock(mutex_);
  return invalid_;
}

void Capture::invalidate() {
  const std::lock_guard lock(mutex_);
  invalid_ = true;
}

void Capture::abandon() {
  std::vector<Node> dropped;  // outside the lock
  const std::lock_guard lock(mutex_);
  ended_ = true;
  dropped.swap(nodes_);
}

std::size_t Capture::add_branch() {
  const std::lock_guard lock(mutex_);
  branches_.emplace_back();
  for (Branch& branch : branches_) branch.reached.resize(branches_.size());
  return branches_.size() - 1;
}

void Capture::add_locked(Node node) {
  ++branches_[node.branch].reached[node.branch];
  nodes_.push_back(std::move(node));
}

void Capture::add(std::size_t branch, Issue issue) {
  const std::lock_guard lock(mutex_);
  Node node;
  node.branch = branch;
  node.issue = std::move(issue);
  add_locked(std::move(node));
}

void Capture::add_external_record(std::size_t branch, std::shared_ptr<Event> event) {
  const std::lock_guard lock(mutex_);
  Node node;
  node.kind = Node::Kind::external_record;
  node.branch = branch;
  node.event = std::move(event);
  add_locked(std::move(node));
}

void Capture::add_external_wait(std::size_t branch, std::shared_ptr<Event> event) {
  const std::lock_guard lock(mutex_);
  Node node;
  node.kind = Node::Kind::external_wait;
  node.branch = branch;
  node.event = std::move(event);
  add_locked(std::move(node));
}

// Points and waits are not counted: a stream that only waits need not be joined again.
std::size_t Capture::add_point(std::size_t branch) {
  const std::lock_guard lock(mutex_);
  Node node;
  node.kind = Node::Kind::point;
  node.branch = branch;
  node.point = points_.size();
  points_.push_back(branches_[branch]);
  nodes_.push_back(std::move(node));
  return points_.size() - 1;
}

void Capture::add_wait(std::size_t branch, std::size_t point) {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t>& reached = branches_[branch].reached;
  const std::vector<std::size_t>& before = points_[point].reached;
  for (std::size_t other = 0; other < before.size(); ++other) reached[other] = std::max(reached[other], before[other]);
  Node node;
  node.kind = Node::Kind::wait;
  node.branch = branch;
  node.point = point;
  nodes_.push_back(std::move(node));
}

std::unique_ptr<Graph> Capture::end() {
  std::vector<Node> nodes;
  const std::lock_guard lock(mutex_);
  ended_ = true;
  nodes.swap(nodes_);
  if (invalid_) throw Error(ncclUnhandledCudaError, "the capture was spoilt by a call that it does not allow");
  for (std::size_t branch = 0; branch < branches_.size(); ++branch) {
    if (branches_[0].reached[branch] < branches_[branch].reached[branch]) {
      throw Error(ncclUnhandledCudaError, "a stream that joined the capture was not joined again");
    }
  }
  return std::make_unique<Graph>(std::move(nodes), branches_.size(), points_.size());
}

}  // namespace standin
