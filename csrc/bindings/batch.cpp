#include "wire/batch.hpp"

#include <pybind11/stl.h>

#include <deque>
#include <string>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/codec_field.hpp"
#include "bindings/fields.hpp"
#include "bindings/kept_memory.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/feedback.hpp"

namespace gradcomp::bindings {
namespace {

Span<float> carried_of(py::handle given, const CompiledCodec& codec) {
  auto array = array_of<Floats>(given);
  const Span<float> carried = output(array);
  if (carried.size() == carried_size(*codec.codec)) return carried;
  throw py::value_error("'" + codec.spec + "' carries " +
                        std::to_string(carried_size(*codec.codec)) + " numbers of a tensor, not " +
                        std::to_string(carried.size()));
}

void check_basis(const CompiledCodec& codec, std::size_t given, std::size_t n, std::size_t cols) {
  const std::size_t size = basis_size(*codec.codec, n, cols);
  if (given == size) return;
  throw py::value_error("'" + codec.spec + "' keeps a basis of " + std::to_string(size) +
                        " numbers of this tensor, not " + std::to_string(given));
}

// Memory for the decoded frame of a tensor of n elements.
void check_decoded(const Floats& decoded, std::size_t n) {
  const auto size = static_cast<std::size_t>(decoded.size());
  if (size == n) return;
  throw py::value_error("an array of " + std::to_string(size) +
                        " elements for a decoded frame of " + std::to_string(n));
}

// An item for gradcomp.EncodeItem; its feedback, if any, is added to `feedbacks`. The named tuple
// keeps the arrays.
EncodeItem item_of(py::handle tensor, std::deque<Feedback>* feedbacks) {
  static const Field seed("seed"), step("step"), tensor_id("tensor_id"), grad_field("grad"),
      residual_field("residual"), beta("beta"), gamma("gamma"), correction_field("correction"),
      carried_field("carried"), basis_field("basis"), decoded_field("decoded");
  const auto grad = array_of<Floats>(grad_field.of(tensor));
  EncodeItem item;
  item.codec = &codec_of(tensor);
  item.x = input(grad);
  item.cols = cols_of(grad);
  item.stream = stream_of(seed.of(tensor), step.of(tensor), tensor_id.of(tensor));
  const py::object given_residual = residual_field.of(tensor);
  if (!given_residual.is_none()) {
    auto residual = array_of<Floats>(given_residual);
    check_equal_size(residual, grad);
    const py::object correction = correction_field.of(tensor);
    if (correction.is_none()) {
      feedbacks->emplace_back(output(residual), grad.data(), beta.of(tensor).cast<float>(),
                              gamma.of(tensor).cast<float>());
    } else {
      feedbacks->emplace_back(output(residual), grad.data(), correction_of(correction, grad));
    }
    const py::object decoded = decoded_field.of(tensor);
    if (!decoded.is_none()) {
      auto array = array_of<Floats>(decoded);
      check_decoded(array, item.x.size());
      feedbacks->back().keep_decoded(output(array));
    }
    item.feedback = &feedbacks->back();
    item.x = input(residual);
  }
  const py::object carried = carried_field.of(tensor);
  if (!carried.is_none()) item.carried = carried_of(carried, *item.codec);
  const py::object basis = basis_field.of(tensor);
  if (!basis.is_none()) {
    item.basis = input(array_of<Floats>(basis));
    check_basis(*item.codec, item.basis.size(), item.x.size(), item.cols);
  }
  return item;
}

// Returns an array that begins with the frames of a list of gradcomp.EncodeItem, one after the
// other, and their sizes. Residuals, momenta and carried numbers are updated in place.
py::tuple encode_tensors(const std::vector<py::object>& tensors) {
  std::deque<Feedback> feedbacks;  // items point to them, so they must not move
  std::vector<EncodeItem> items;
  items.reserve(tensors.size());
  for (const py::object& tensor : tensors) items.push_back(item_of(tensor, &feedbacks));
  const Span<const EncodeItem> all{items.data(), items.size()};
  Bytes out = room(max_batch_size(all));
  const Span<std::uint8_t> to = output(out);
  std::vector<std::size_t> sizes(items.size());
  call_without_gil([&] { return gradcomp::encode_batch(all, to, {sizes.data(), sizes.size()}); });
  return py::make_tuple(out, sizes);
}

// For each gradcomp.DecodeItem of a list: out += weight * decode(frame), in the order of the
// frames.
void decode_tensors_add(const std::vector<py::object>& tensors, float weight) {
  static const Field name("name"), frames_field("frames"), out_field("out"), basis_field("basis"),
      senders("senders"), over_senders("over_senders"), clips("clips"), replaces("replaces"),
      known_field("known");
  std::vector<Bytes> kept;  // `frames` of a tensor may be a list, which other threads can change
  std::deque<std::vector<Span<const std::uint8_t>>> frames;  // items point to them
  std::vector<DecodeItem> items;
  items.reserve(tensors.size());
  for (const py::object& tensor : tensors) {
    frames.emplace_back();
    for (const py::handle frame : frames_field.of(tensor)) {
      kept.push_back(array_of<Bytes>(frame));
      frames.back().push_back(input(kept.back()));
    }
    auto out = array_of<Floats>(out_field.of(tensor));
    const py::object basis = basis_field.of(tensor);
    items.push_back({&codec_of(tensor),
                     {frames.back().data(), frames.back().size()},
                     output(out),
                     basis.is_none() ? Span<const float>() : input(array_of<Floats>(basis)),
                     over_senders.of(tensor).cast<bool>(),
                     clips.of(tensor).cast<bool>(),
                     replaces.of(tensor).cast<bool>()});
    const py::object known = known_field.of(tensor);
    if (known.is_none()) continue;
    const auto decoded = array_of<Floats>(known[py::int_(1)]);
    check_decoded(decoded, items.back().acc.size());
    items.back().own = known[py::int_(0)].cast<std::size_t>();
    items.back().decoded = input(decoded);
  }
  Status status;
  BatchFault fault;
  {
    py::gil_scoped_release release;
    status = gradcomp::decode_batch_add({items.data(), items.size()}, weight, &fault);
  }
  if (status.ok()) return;
  const py::object& tensor = tensors[fault.item];
  const py::object given = senders.of(tensor);
  const std::size_t sender =
      given.is_none() ? fault.frame : given[py::int_(fault.frame)].cast<std::size_t>();
  raise_unless_ok({status.code(), "the frame of rank " + std::to_string(sender) + " for '" +
                                      name.of(tensor).cast<std::string>() +
                                      "': " + status.message()});
}

}  // namespace

void bind_batch(py::module_& m) {
  m.def("encode_batch", &encode_tensors, py::arg("tensors"));
  m.def("decode_batch_add", &decode_tensors_add, py::arg("tensors"), py::arg("weight"));
}

}  // namespace gradcomp::bindings
