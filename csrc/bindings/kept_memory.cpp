#include "bindings/kept_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "bindings/bindings.hpp"

namespace gradcomp::bindings {
namespace {

// The C library keeps smaller blocks itself.
constexpr std::size_t kLeast = std::size_t{1} << 20;
// Larger blocks consist of huge pages where the system has them, as NumPy's arrays do.
constexpr std::size_t kHuge = std::size_t{4} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// TensorFlow copies arrays at other addresses.
constexpr std::size_t kAlignment = 64;

// Bytes of the block for an array: at most an eighth more, so that arrays whose sizes vary from
// step to step get the same blocks.
std::size_t block_size(std::size_t nbytes) {
  std::size_t unit = kAlignment;
  if (nbytes >= kLeast) {
    while (unit * 16 <= nbytes) unit *= 2;
  }
  return (nbytes / unit + 1) * unit;
}

void* allocate(std::size_t nbytes) {
  const bool huge = nbytes >= kHuge;
  void* block = nullptr;
  if (posix_memalign(&block, huge ? kHugePage : kAlignment, nbytes) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (huge) madvise(block, nbytes, MADV_HUGEPAGE);
#endif
  return block;
}

// Free and lent blocks together never take more than lent ones alone once have.
class KeptMemory {
 public:
  void* take(std::size_t nbytes) {
    const std::lock_guard<std::mutex> guard(mutex_);
    free_.reserve(free_.size() + lent_blocks_ + 1);  // so that give_back() never allocates
    void* const block = kept(nbytes);
    ++lent_blocks_;
    lent_ += nbytes;
    most_ = std::max(most_, lent_);
    return block;
  }

  void give_back(void* block, std::size_t nbytes) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    --lent_blocks_;
    lent_ -= nbytes;
    kept_ += nbytes;
    free_.push_back({block, nbytes});
  }

 private:
  struct Block {
    void* at;
    std::size_t nbytes;
  };

  void* kept(std::size_t nbytes) {
    const auto last = std::find_if(free_.rbegin(), free_.rend(),
                                   [&](const Block& one) { return one.nbytes == nbytes; });
    if (last != free_.rend()) return remove(std::prev(last.base()));
    while (!free_.empty() && lent_ + nbytes + kept_ > most_) std::free(remove(free_.begin()));
    return allocate(nbytes);
  }

  void* remove(std::vector<Block>::iterator block) {
    void* const at = block->at;
    kept_ -= block->nbytes;
    free_.erase(block);
    return at;
  }

  std::mutex mutex_;         // interpreters without a lock of their own share the memory, too
  std::vector<Block> free_;  // the oldest first
  std::size_t lent_blocks_ = 0;
  std::size_t lent_ = 0, kept_ = 0, most_ = 0;  // bytes
};

// Never destroyed: arrays may outlive everything else in the process.
KeptMemory& kept_memory() {
  static KeptMemory* const memory = new KeptMemory;
  return *memory;
}

struct Loan {
  void* block;
  std::size_t nbytes;

  ~Loan() {
    if (nbytes < kLeast) {
      std::free(block);
    } else {
      kept_memory().give_back(block, nbytes);
    }
  }
};

}  // namespace

Bytes room(std::size_t nbytes) {
  const std::size_t size = block_size(nbytes);
  void* const block = size < kLeast ? allocate(size) : kept_memory().take(size);
  auto loan = std::unique_ptr<Loan>(new Loan{block, size});
  const py::capsule owner(loan.get(), [](void* one) { delete static_cast<Loan*>(one); });
  loan.release();
  return Bytes(static_cast<py::ssize_t>(nbytes), static_cast<std::uint8_t*>(block), owner);
}

void bind_kept_memory(py::module_& m) { m.def("room", &room, py::arg("nbytes")); }

}  // namespace gradcomp::bindings
