// Lets zipccl's helper thread in this process catch up, on machines so busy that calls would else overtake the messages
// by which ranks agree. For tests that expect an agreement after so many calls; a job's own calls take longer.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace zipccl::test {

// Whether the thread has work that it has had no processor for. False for what is no such thread, or has ended.
inline bool is_behind(const std::filesystem::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  if (name != "zipccl") {
    return false;
  }
  std::string line;
  std::getline(std::ifstream(task / "stat"), line);
  const std::size_t end = line.rfind(')');
  return end != std::string::npos && end + 2 < line.size() && line[end + 2] == 'R';
}

inline void let_helper_work() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::error_code error;  // a thread that ends meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    while (is_behind(task.path()) && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace zipccl::test
