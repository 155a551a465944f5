#include "base/thread_pool.hpp"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace gradcomp {
namespace {

std::size_t threads_from_environment() noexcept {
  const char* text = std::getenv("GRADCOMP_THREADS");
  if (text == nullptr || *text < '0' || *text > '9') return 1;
  errno = 0;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  return errno == 0 && *end == '\0' && value >= 1 && value <= kMaxThreads ? value : 1;
}

std::atomic<std::size_t>& configured_threads() noexcept {
  static std::atomic<std::size_t> count{threads_from_environment()};
  return count;
}

class Pool {
 public:
  // Runs a job with up to `threads` threads; false when another call is using the pool.
  bool try_run(std::size_t count, void (*task)(void*, std::size_t), void* context,
               std::size_t threads) noexcept {
    std::unique_lock<std::mutex> exclusive(busy_, std::try_to_lock);
    if (!exclusive.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (workers_ + 1 < threads && start_worker()) ++workers_;
      task_ = task;
      context_ = context;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      wanted_ = threads - 1 < workers_ ? threads - 1 : workers_;
      active_ = wanted_;
      ++generation_;
    }
    wake_.notify_all();
    work();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return active_ == 0; });
    return true;
  }

 private:
  bool start_worker() noexcept {
    // The generation is read here, under the lock, so that the worker can tell new jobs from old.
    try {
      std::thread([this, index = workers_, seen = generation_] { loop(index, seen); }).detach();
      return true;
    } catch (...) {
      return false;  // the system has no more threads: fewer do the work
    }
  }

  void work() noexcept {
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      task_(context_, i);
    }
  }

  void loop(std::size_t index, std::size_t seen) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (index >= wanted_) continue;
      lock.unlock();
      work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::size_t workers_ = 0;
  std::size_t wanted_ = 0;
  std::size_t active_ = 0;
  std::size_t generation_ = 0;
  void (*task_)(void*, std::size_t) = nullptr;
  void* context_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_{0};
};

// The pool is never destroyed: its threads sleep until the process ends. A forked child has none of
// them, and perhaps a locked mutex, so it creates a new pool.
std::atomic<Pool*> current_pool{nullptr};

Pool* pool() noexcept {
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });
    return true;
  }();
  (void)registered;
  Pool* existing = current_pool.load();
  if (existing != nullptr) return existing;
  Pool* fresh = new (std::nothrow) Pool;
  if (fresh == nullptr) return nullptr;
  if (current_pool.compare_exchange_strong(existing, fresh)) return fresh;
  delete fresh;
  return existing;
}

}  // namespace

std::size_t thread_count() noexcept { return configured_threads().load(std::memory_order_relaxed); }

void set_thread_count(std::size_t count) noexcept {
  configured_threads().store(count < 1 ? 1 : count > kMaxThreads ? kMaxThreads : count);
}

void run_tasks(std::size_t count, void (*task)(void*, std::size_t), void* context) noexcept {
  std::size_t threads = thread_count();
  if (threads > count) threads = count;
  if (threads > 1) {
    Pool* const shared = pool();
    if (shared != nullptr && shared->try_run(count, task, context, threads)) return;
  }
  for (std::size_t i = 0; i < count; ++i) task(context, i);
}

}  // namespace gradcomp
