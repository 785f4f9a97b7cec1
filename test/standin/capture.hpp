// Captures and the graphs they become. A graph keeps what was enqueued, stream by stream, and replays it on streams of
// its own, so that parallel branches run in parallel.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "test/standin/stream.hpp"

namespace standin {

struct Node {
  enum class Kind { issue, point, wait, external_record, external_wait };

  Kind kind = Kind::issue;
  std::size_t branch = 0;
  std::size_t point = 0;         // that a point node sets and a wait node waits for
  Issue issue;                   // of an issue node
  std::shared_ptr<Event> event;  // of the external ones
};

class Graph {
 public:
  Graph(std::vector<Node> nodes, std::size_t branches, std::size_t points);
  ~Graph();  // waits for the launches
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Enqueues the graph on a stream, behind its earlier launches. Throws what issuing a node throws, after everything
  // before that node, and an Error if the stream captures.
  void launch(Stream* stream);

 private:
  void enqueue_nodes();

  std::mutex mutex_;
  const std::vector<Node> nodes_;  // in the order of capture
  const std::size_t points_;
  std::vector<std::unique_ptr<Stream>> branches_;
  std::vector<Point> ends_;  // of the latest launch, by branch
};

// A capture in progress. Branch 0 is the stream that began it. All functions may be called from any thread.
class Capture {
 public:
  explicit Capture(const void* origin);

  unsigned long long number() const { return number_; }  // unlike that of any other capture of the process
  bool active();                                         // not ended
  bool invalid();                                        // spoilt; the end will fail
  void invalidate();
  void abandon();  // ends it without a graph
  bool began_on(const void* stream) const { return origin_ == stream; }

  std::size_t add_branch();
  void add(std::size_t branch, Issue issue);
  void add_external_record(std::size_t branch, std::shared_ptr<Event> event);
  void add_external_wait(std::size_t branch, std::shared_ptr<Event> event);
  std::size_t add_point(std::size_t branch);
  void add_wait(std::size_t branch, std::size_t point);

  // Throws Error(ncclUnhandledCudaError) if the capture is spoilt or a branch was not joined by branch 0.
  std::unique_ptr<Graph> end();

 private:
  // How many nodes of every branch come before what the branch adds next.
  struct Branch {
    std::vector<std::size_t> reached;
  };

  void add_locked(Node node);

  const void* const origin_;
  const unsigned long long number_;
  std::mutex mutex_;
  bool ended_ = false;
  bool invalid_ = false;
  std::vector<Node> nodes_;
  std::vector<Branch> branches_;
  std::vector<Branch> points_;
};

}  // namespace standin
