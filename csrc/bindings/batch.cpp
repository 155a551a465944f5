#include "wire/batch.hpp"

#include <pybind11/stl.h>

#include <deque>
#include <string>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/codec.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/feedback.hpp"

namespace gradcomp::bindings {
namespace {

void check_basis(const CompiledCodec& codec, std::size_t given, std::size_t n, std::size_t cols) {
  const std::size_t size = basis_size(*codec.codec, n, cols);
  if (given == size) return;
  throw py::value_error("'" + codec.spec + "' keeps a basis of " + std::to_string(size) +
                        " numbers of this tensor, not " + std::to_string(given));
}

// Each tensor: (codec, gradient, stream, residual or None, beta, gamma, None or (momentum, factor,
// scale, nesterov, masking), carried numbers or None, basis or None). Residuals, momenta and
// carried numbers are updated in place. Returns an array that begins with the frames, one after the
// other, and their sizes.
py::tuple encode_tensors(const std::vector<py::tuple>& tensors) {
  std::deque<Feedback> feedbacks;  // which must not move
  std::vector<EncodeItem> items;
  for (const py::tuple& tensor : tensors) {
    const Floats grad = array_of<Floats>(tensor[1]);
    EncodeItem item;
    item.codec = &tensor[0].cast<const PyCodec&>().compiled();
    item.x = input(grad);
    item.cols = cols_of(grad);
    item.stream = tensor[2].cast<std::uint64_t>();
    if (!tensor[3].is_none()) {
      Floats residual = array_of<Floats>(tensor[3]);
      check_equal_size(residual, grad);
      if (tensor[6].is_none()) {
        feedbacks.emplace_back(output(residual), grad.data(), tensor[4].cast<float>(),
                               tensor[5].cast<float>());
      } else {
        const auto given = tensor[6].cast<py::tuple>();
        Floats momentum = array_of<Floats>(given[0]);
        check_equal_size(momentum, grad);
        feedbacks.emplace_back(
            output(residual), grad.data(),
            Correction{output(momentum), given[1].cast<float>(), given[2].cast<float>(),
                       given[3].cast<bool>(), given[4].cast<bool>()});
      }
      item.feedback = &feedbacks.back();
      item.x = input(residual);
    }
    if (!tensor[7].is_none()) {
      Floats carried = array_of<Floats>(tensor[7]);
      item.carried = output(carried);
      if (item.carried.size() != carried_size(*item.codec->codec)) {
        throw py::value_error("'" + item.codec->spec + "' carries " +
                              std::to_string(carried_size(*item.codec->codec)) +
                              " numbers of a tensor, not " + std::to_string(item.carried.size()));
      }
    }
    if (!tensor[8].is_none()) {
      item.basis = input(array_of<Floats>(tensor[8]));
      check_basis(*item.codec, item.basis.size(), item.x.size(), item.cols);
    }
    items.push_back(item);
  }
  const Span<const EncodeItem> all{items.data(), items.size()};
  Bytes out(static_cast<py::ssize_t>(max_batch_size(all)));
  const Span<std::uint8_t> to = output(out);
  std::vector<std::size_t> sizes(items.size());
  call_without_gil([&] { return gradcomp::encode_batch(all, to, {sizes.data(), sizes.size()}); });
  return py::make_tuple(out, sizes);
}

// Each tensor: (name, codec, the ranks' frames, accumulator, basis or None). acc += weight *
// decode(frame), frame after frame.
void decode_tensors_add(const std::vector<py::tuple>& tensors, float weight) {
  std::deque<std::vector<Span<const std::uint8_t>>> frames;  // which must not move
  std::vector<DecodeItem> items;
  for (const py::tuple& tensor : tensors) {
    frames.emplace_back();
    for (const py::handle& frame : tensor[2]) {
      frames.back().push_back(input(array_of<Bytes>(frame)));
    }
    Floats acc = array_of<Floats>(tensor[3]);
    items.push_back(
        {&tensor[1].cast<const PyCodec&>().compiled(),
         {frames.back().data(), frames.back().size()},
         output(acc),
         tensor[4].is_none() ? Span<const float>() : input(array_of<Floats>(tensor[4]))});
  }
  Status status;
  BatchFault fault;
  {
    py::gil_scoped_release release;
    status = gradcomp::decode_batch_add({items.data(), items.size()}, weight, &fault);
  }
  if (status.ok()) return;
  raise_unless_ok({status.code(), "the frame of rank " + std::to_string(fault.frame) + " for '" +
                                      tensors[fault.item][0].cast<std::string>() +
                                      "': " + status.message()});
}

}  // namespace

void bind_batch(py::module_& m) {
  m.def("encode_batch", &encode_tensors, py::arg("tensors"));
  m.def("decode_batch_add", &decode_tensors_add, py::arg("tensors"), py::arg("weight"));
}

}  // namespace gradcomp::bindings
