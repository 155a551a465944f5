#include "base/thread_pool.hpp"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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

// A job's number and its next task, in one word: a thread that takes a task of a job by comparing
// and exchanging it cannot take one of another job.
class Ticket {
 public:
  // All tasks are taken, or not yet to be taken.
  static constexpr std::uint32_t kClosed = 0xFFFFFFFFu;

  Ticket(std::uint32_t job, std::uint32_t task) : word_(std::uint64_t{job} << 32 | task) {}
  explicit Ticket(std::uint64_t word) : word_(word) {}

  std::uint64_t word() const { return word_; }
  std::uint32_t job() const { return static_cast<std::uint32_t>(word_ >> 32); }
  std::uint32_t task() const { return static_cast<std::uint32_t>(word_); }

 private:
  std::uint64_t word_;
};

// Time for which a thread that has nothing to do looks for the next job, or for the end of this
// one, before it sleeps. To wake a thread takes half as long; most of a bucket's jobs follow each
// other faster.
constexpr std::chrono::microseconds kAwake{100};

// Waits for kAwake at most. Returns whether the condition holds. The processor is others' if they
// need it, among them a thread of the pool that has been put on the same one.
template <typename Condition>
bool soon(const Condition& condition) noexcept {
  const auto end = std::chrono::steady_clock::now() + kAwake;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Threads take tasks one by one. The caller takes them as well and waits only for those that a
// thread has begun, so a thread that wakes late delays nothing.
class Pool {
 public:
  // Runs a job with up to `threads` threads; false when another call is using the pool.
  bool try_run(std::uint32_t count, void (*task)(void*, std::size_t), void* context,
               std::size_t threads) noexcept {
    std::unique_lock<std::mutex> exclusive(busy_, std::try_to_lock);
    if (!exclusive.owns_lock()) return false;
    while (workers_ + 1 < threads && start_worker()) ++workers_;
    const std::uint32_t last = Ticket(ticket_.load()).job();
    // A thread that reads a field of this job cannot take a task with the last job's ticket.
    ticket_.store(Ticket(last, Ticket::kClosed).word());
    task_.store(task);
    context_.store(context);
    count_.store(count);
    threads_.store(threads);
    left_.store(count);
    // Threads look for a new number, and find its tasks.
    ticket_.store(Ticket(last + 1, 0).word());
    wake(&next_job_);
    while (take_task(0)) {
    }
    const auto done = [this] { return left_.load() == 0; };
    if (!soon(done)) {
      std::unique_lock<std::mutex> lock(mutex_);
      job_done_.wait(lock, done);
    }
    return true;
  }

 private:
  bool start_worker() noexcept {
    const std::uint32_t job = Ticket(ticket_.load()).job();
    try {
      std::thread([this, index = workers_ + 1, job] { loop(index, job); }).detach();
      return true;
    } catch (...) {
      return false;  // the system has no more threads: fewer do the work
    }
  }

  // Wakes threads whose condition has just been met. One that has looked before and is about to
  // sleep holds the mutex until it does.
  void wake(std::condition_variable* sleepers) noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }
    sleepers->notify_all();
  }

  // Runs the next task. Returns false where none is left, or none for the thread of this index; the
  // caller's is 0.
  bool take_task(std::size_t index) noexcept {
    for (;;) {
      std::uint64_t word = ticket_.load();
      const Ticket ticket(word);
      const auto task = task_.load();
      void* const context = context_.load();
      if (ticket.task() >= count_.load() || index >= threads_.load()) return false;
      const std::uint64_t next = Ticket(ticket.job(), ticket.task() + 1).word();
      if (!ticket_.compare_exchange_strong(word, next)) continue;
      task(context, ticket.task());
      if (left_.fetch_sub(1) == 1) wake(&job_done_);
      return true;
    }
  }

  // A thread of the pool. `job`: the last one before it was started.
  void loop(std::size_t index, std::uint32_t job) noexcept {
    for (;;) {
      const auto next = [&] { return Ticket(ticket_.load()).job() != job; };
      if (!soon(next)) {
        std::unique_lock<std::mutex> lock(mutex_);
        next_job_.wait(lock, next);
      }
      job = Ticket(ticket_.load()).job();
      while (take_task(index)) {
      }
    }
  }

  std::mutex busy_;  // held for a job
  std::mutex mutex_;
  std::condition_variable next_job_;
  std::condition_variable job_done_;
  std::size_t workers_ = 0;
  std::atomic<std::uint64_t> ticket_{Ticket(0, Ticket::kClosed).word()};
  // Of the job.
  std::atomic<void (*)(void*, std::size_t)> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::size_t> threads_{0};  // the caller included
  std::atomic<std::uint32_t> left_{0};   // tasks that have not ended
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
  if (threads > 1 && count < Ticket::kClosed) {
    Pool* const shared = pool();
    const auto tasks = static_cast<std::uint32_t>(count);
    if (shared != nullptr && shared->try_run(tasks, task, context, threads)) return;
  }
  for (std::size_t i = 0; i < count; ++i) task(context, i);
}

}  // namespace gradcomp
