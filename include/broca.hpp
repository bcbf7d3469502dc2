/*
 * broca.hpp: broca.h with owners, for C++17. Header only, and without exceptions of its own.
 *
 * Every class owns its object and frees it. What may fail returns a result: test it, then take its value or its error.
 * The blocking style; a program with an event loop uses the functions of broca.h on what `get()` gives.
 *
 *   auto options = broca::options::make(url, key);
 *   auto client = options->make_client();
 *   auto session = client->open({&tool});
 *   auto turn = session->send("What does read_file say about main.py?");
 *   for (broca::step &step : *turn) { … }
 *   if (turn->error()) …
 */
#ifndef BROCA_HPP
#define BROCA_HPP

#include "broca.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace broca {

inline std::string_view view(broca_bytes bytes) noexcept {
    return bytes.data == nullptr ? std::string_view{} : std::string_view{bytes.data, bytes.len};
}

namespace detail {
template <class T, void (*Free)(T *)> struct deleter {
    void operator()(T *object) const noexcept { Free(object); }
};
template <class T, void (*Free)(T *)> using owner = std::unique_ptr<T, deleter<T, Free>>;

/* A place for an output of C that an owner takes over. */
template <class Owner> class slot {
  public:
    explicit slot(Owner &owner) noexcept : owner_(owner) {}
    ~slot() { owner_.reset(object_); }
    slot(const slot &) = delete;
    slot &operator=(const slot &) = delete;
    operator typename Owner::element_type **() noexcept { return &object_; }

  private:
    Owner &owner_;
    typename Owner::element_type *object_ = nullptr;
};
} // namespace detail

/* Why a call failed; false when there is no error. */
class error {
  public:
    using owner = detail::owner<broca_error, broca_error_free>;

    error() = default;
    explicit error(owner object) noexcept : object_(std::move(object)) {}

    explicit operator bool() const noexcept { return object_ != nullptr; }
    broca_status code() const noexcept { return broca_error_code(object_.get()); }
    std::string_view kind() const noexcept { return view(broca_error_kind(object_.get())); }
    std::string_view message() const noexcept { return view(broca_error_message(object_.get())); }
    std::string_view details() const noexcept { return view(broca_error_details(object_.get())); }
    std::int32_t retry() const noexcept { return broca_error_retry(object_.get()); }
    const broca_error *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

/* A value, or why there is none. */
template <class T> class [[nodiscard]] result {
  public:
    result(T value) : value_(std::move(value)) {}
    result(broca::error error) noexcept : error_(std::move(error)) {}

    explicit operator bool() const noexcept { return value_.has_value(); }
    T &operator*() & noexcept { return *value_; }
    T &&operator*() && noexcept { return std::move(*value_); }
    T *operator->() noexcept { return &*value_; }
    const broca::error &error() const noexcept { return error_; }
    broca::error take_error() noexcept { return std::move(error_); }

  private:
    std::optional<T> value_;
    broca::error error_;
};

namespace detail {
/* Calls a function that gives an object and an error, and wraps what came. */
template <class T, class Call> result<T> make(Call call) {
    typename T::owner object;
    broca::error::owner failure;
    broca_status status;
    {
        slot<typename T::owner> to(object);
        slot<broca::error::owner> err(failure);
        status = call(to, err);
    }
    if (status != BROCA_OK) {
        return error(std::move(failure));
    }
    return T(std::move(object));
}

/* Calls a function that gives nothing but an error. */
template <class Call> error run(Call call) {
    broca::error::owner failure;
    {
        slot<broca::error::owner> err(failure);
        call(err);
    }
    return error(std::move(failure));
}
} // namespace detail

/* One step; false when none came. Questions that are never answered are refused when the step goes. */
class step {
  public:
    using owner = detail::owner<broca_step, broca_step_free>;

    step() = default;
    explicit step(owner object) noexcept : object_(std::move(object)) {}

    explicit operator bool() const noexcept { return object_ != nullptr; }
    std::int32_t kind() const noexcept { return broca_step_kind(get()); }
    std::uint64_t operation() const noexcept { return broca_step_operation(get()); }

    std::string_view id() const noexcept { return view(broca_step_id(get())); }
    std::string_view type() const noexcept { return view(broca_step_type(get())); }
    std::string_view payload() const noexcept { return view(broca_step_payload(get())); }
    std::string_view json() const noexcept { return view(broca_step_json(get())); }
    std::int32_t delta_kind() const noexcept { return broca_step_delta_kind(get()); }
    std::string_view text() const noexcept { return view(broca_step_text(get())); }
    std::string_view name() const noexcept { return view(broca_step_name(get())); }
    std::string_view input() const noexcept { return view(broca_step_input(get())); }
    std::uint64_t call() const noexcept { return broca_step_call(get()); }
    std::string_view tool_use_id() const noexcept { return view(broca_step_tool_use_id(get())); }
    std::string_view idempotency_key() const noexcept { return view(broca_step_idempotency_key(get())); }
    bool may_have_run() const noexcept { return broca_step_may_have_run(get()) != 0; }
    bool server_side() const noexcept { return broca_step_server_side(get()) != 0; }
    std::string_view outcome() const noexcept { return view(broca_step_outcome(get())); }
    std::string_view value() const noexcept { return view(broca_step_value(get())); }
    std::string_view message() const noexcept { return view(broca_step_message(get())); }
    std::uint32_t rounds() const noexcept { return broca_step_rounds(get()); }
    std::uint32_t tool_calls() const noexcept { return broca_step_tool_calls(get()); }
    std::string_view usage() const noexcept { return view(broca_step_usage(get())); }
    std::string_view session_spent() const noexcept { return view(broca_step_session_spent(get())); }

    broca::error complete(std::string_view json) const {
        return detail::run([&](broca_error **err) {
            return broca_call_complete(get(), json.data(), json.size(), nullptr, err);
        });
    }
    broca::error complete_text(std::string_view text) const {
        return detail::run([&](broca_error **err) {
            return broca_call_complete_text(get(), text.data(), text.size(), nullptr, err);
        });
    }
    broca::error fail(std::string_view text) const {
        return detail::run([&](broca_error **err) {
            return broca_call_fail(get(), text.data(), text.size(), nullptr, err);
        });
    }
    broca::error allow() const {
        return detail::run([&](broca_error **err) { return broca_approval_allow(get(), nullptr, err); });
    }
    broca::error deny(std::string_view reason) const {
        return detail::run([&](broca_error **err) {
            return broca_approval_deny(get(), reason.data(), reason.size(), nullptr, err);
        });
    }

    /* Everything that has no method here, through broca_step_…. */
    const broca_step *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

/* Something under way that brings steps: `for (broca::step &step : turn)`. What it failed with is its error() afterwards. */
template <class T, void (*Free)(T *), broca_status (*Next)(T *, std::int64_t, broca_step **, broca_error **),
          broca_status (*Cancel)(T *, broca_error **), std::int32_t (*IsOver)(T *)>
class stepwise {
  public:
    using owner = detail::owner<T, Free>;

    class iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = step;
        using difference_type = std::ptrdiff_t;
        using pointer = step *;
        using reference = step &;

        explicit iterator(stepwise *of) : of_(of) { ++*this; }
        step &operator*() const noexcept { return of_->current_; }
        step *operator->() const noexcept { return &of_->current_; }
        iterator &operator++() {
            if (of_ != nullptr && !of_->advance()) {
                of_ = nullptr;
            }
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(const iterator &other) const noexcept { return of_ == other.of_; }
        bool operator!=(const iterator &other) const noexcept { return of_ != other.of_; }

      private:
        stepwise *of_;
    };

    explicit stepwise(owner object) noexcept : object_(std::move(object)) {}

    /* False when there is nothing under way, such as no turn to take up. */
    explicit operator bool() const noexcept { return object_ != nullptr; }

    /* The next step; an empty one when none came within the time (negative: as long as it takes) or nothing follows. */
    result<step> next(std::int64_t timeout_ms = -1) {
        return detail::make<step>(
            [&](broca_step **to, broca_error **err) { return Next(get(), timeout_ms, to, err); });
    }
    broca::error cancel() {
        return detail::run([&](broca_error **err) { return Cancel(get(), err); });
    }
    bool is_over() const noexcept { return IsOver(get()) != 0; }

    iterator begin() { return iterator(*this ? this : nullptr); }
    iterator end() noexcept { return iterator(nullptr); }
    /* What ended the last range, if it was an error. */
    const broca::error &error() const noexcept { return error_; }

    T *get() const noexcept { return object_.get(); }

  private:
    bool advance() {
        auto came = next();
        if (came) {
            current_ = std::move(*came);
        } else {
            current_ = step();
            error_ = came.take_error();
        }
        return static_cast<bool>(current_);
    }

    owner object_;
    step current_;
    broca::error error_;
};

/* A turn. When it goes before its end, it is cancelled and waited for. */
class turn : public stepwise<broca_turn, broca_turn_free, broca_turn_next, broca_turn_cancel, broca_turn_is_over> {
  public:
    using stepwise::stepwise;
    turn(turn &&) = default;
    turn &operator=(turn &&) = default;
    ~turn() { leave(); }

    /* Cancels the turn and waits until it is quiet. */
    broca::error leave() {
        if (get() == nullptr) {
            return broca::error();
        }
        return detail::run([&](broca_error **err) { return broca_turn_leave(get(), err); });
    }

    /* Drives the turn to its last step and shows each one. */
    template <class OnStep> result<step> reply(OnStep on_step) {
        return detail::make<step>([&](broca_step **to, broca_error **err) {
            return broca_turn_reply(
                get(),
                [](void *data, const broca_step *shown) { (*static_cast<OnStep *>(data))(shown); },
                &on_step, to, err);
        });
    }
};

class subscription : public stepwise<broca_subscription, broca_subscription_free, broca_subscription_next,
                                     broca_subscription_cancel, broca_subscription_is_over> {
  public:
    using stepwise::stepwise;

    /* Just after the last event: valid until it is asked for again. */
    std::string_view cursor() const noexcept { return view(broca_subscription_cursor(get())); }
};

class request : public stepwise<broca_request, broca_request_free, broca_request_next, broca_request_cancel,
                                broca_request_is_over> {
  public:
    using stepwise::stepwise;
};

class tool {
  public:
    using owner = detail::owner<broca_tool, broca_tool_free>;

    explicit tool(owner object) noexcept : object_(std::move(object)) {}

    static result<tool> make(std::string_view name, std::string_view description, std::string_view schema) {
        return detail::make<tool>([&](broca_tool **to, broca_error **err) {
            return broca_tool_new(name.data(), name.size(), description.data(), description.size(), schema.data(),
                                  schema.size(), to, err);
        });
    }
    broca_tool *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

/* A session as a text that outlives its program: a secret, whose memory is overwritten when it goes. */
class saved {
  public:
    using owner = detail::owner<broca_saved, broca_saved_free>;

    explicit saved(owner object) noexcept : object_(std::move(object)) {}

    std::string_view text() const noexcept { return view(broca_saved_text(get())); }
    const broca_saved *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

class session {
  public:
    using owner = detail::owner<broca_session, broca_session_free>;

    explicit session(owner object) noexcept : object_(std::move(object)) {}

    std::string_view id() const noexcept { return view(broca_session_id(get())); }
    result<turn> send(std::string_view text) {
        return detail::make<turn>([&](broca_turn **to, broca_error **err) {
            return broca_session_send(get(), text.data(), text.size(), to, err);
        });
    }
    result<step> ask(std::string_view text) {
        return detail::make<step>([&](broca_step **to, broca_error **err) {
            return broca_session_ask(get(), text.data(), text.size(), nullptr, nullptr, to, err);
        });
    }
    /* At any time, also in the middle of a turn; waits for nothing. */
    result<saved> save() {
        return detail::make<saved>(
            [&](broca_saved **to, broca_error **err) { return broca_session_save(get(), to, err); });
    }
    /* The turn that the program before this one has left; false when none waits. */
    result<turn> resume() {
        return detail::make<turn>([&](broca_turn **to, broca_error **err) { return broca_session_resume(get(), to, err); });
    }
    result<subscription> subscribe() {
        return detail::make<subscription>(
            [&](broca_subscription **to, broca_error **err) { return broca_session_subscribe(get(), to, err); });
    }
    result<subscription> subscribe_from(std::string_view cursor) {
        return detail::make<subscription>([&](broca_subscription **to, broca_error **err) {
            return broca_session_subscribe_from(get(), cursor.data(), cursor.size(), to, err);
        });
    }
    result<request> history(std::string_view cursor = {}, std::uint32_t limit = 0) {
        return detail::make<request>([&](broca_request **to, broca_error **err) {
            return broca_session_history(get(), cursor.data(), cursor.size(), limit, to, err);
        });
    }
    /* How the session stands, and what is kept with it: `value` of the step is JSON. */
    result<step> info() {
        return detail::make<step>(
            [&](broca_step **to, broca_error **err) { return broca_session_info(get(), to, err); });
    }
    /* Changes what is kept with the session, as a JSON merge patch; with a version only that one. */
    result<step> update(std::string_view metadata, const std::uint64_t *version = nullptr) {
        return detail::make<step>([&](broca_step **to, broca_error **err) {
            return broca_session_update(get(), metadata.data(), metadata.size(), version, to, err);
        });
    }
    broca::error cancel() {
        return detail::run([&](broca_error **err) { return broca_session_cancel(get(), err); });
    }
    broca::error close() {
        return detail::run([&](broca_error **err) { return broca_session_close(get(), err); });
    }
    broca_session *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

class client {
  public:
    using owner = detail::owner<broca_client, broca_client_free>;

    explicit client(owner object) noexcept : object_(std::move(object)) {}

    result<session> open(std::initializer_list<const tool *> tools = {}) {
        auto list = pointers(tools);
        return detail::make<session>([&](broca_session **to, broca_error **err) {
            return broca_client_open(get(), list.data(), list.size(), to, err);
        });
    }
    /* As `open`, with metadata, a JSON object, that is kept with the session. */
    result<session> open_with_metadata(std::string_view metadata, std::initializer_list<const tool *> tools = {}) {
        auto list = pointers(tools);
        return detail::make<session>([&](broca_session **to, broca_error **err) {
            return broca_client_open_with_metadata(get(), list.data(), list.size(), metadata.data(), metadata.size(), to,
                                                   err);
        });
    }
    /* A page of the client's sessions, the newest first: `value` of the step is JSON. */
    result<step> sessions(std::string_view cursor = {}, std::uint32_t limit = 0) {
        return detail::make<step>([&](broca_step **to, broca_error **err) {
            return broca_client_sessions(get(), cursor.data(), cursor.size(), limit, to, err);
        });
    }
    result<session> join(std::string_view id, std::initializer_list<const tool *> tools = {}) {
        auto list = pointers(tools);
        return detail::make<session>([&](broca_session **to, broca_error **err) {
            return broca_client_join(get(), id.data(), id.size(), list.data(), list.size(), to, err);
        });
    }
    /* Goes on with what `session::save` gave, in another program or another language. */
    result<session> attach(std::string_view saved, std::initializer_list<const tool *> tools = {}) {
        auto list = pointers(tools);
        return detail::make<session>([&](broca_session **to, broca_error **err) {
            return broca_client_attach(get(), saved.data(), saved.size(), list.data(), list.size(), to, err);
        });
    }
    result<session> observe(std::string_view id) {
        return detail::make<session>([&](broca_session **to, broca_error **err) {
            return broca_client_observe(get(), id.data(), id.size(), to, err);
        });
    }
    broca_io *io() const noexcept { return broca_client_io(get()); }
    broca_client *get() const noexcept { return object_.get(); }

  private:
    static std::vector<const broca_tool *> pointers(std::initializer_list<const tool *> tools) {
        std::vector<const broca_tool *> list;
        for (const tool *each : tools) {
            list.push_back(each->get());
        }
        return list;
    }
    owner object_;
};

class options {
  public:
    using owner = detail::owner<broca_options, broca_options_free>;

    explicit options(owner object) noexcept : object_(std::move(object)) {}

    static result<options> make(std::string_view url, std::string_view key) {
        return detail::make<options>([&](broca_options **to, broca_error **err) {
            return broca_options_new(url.data(), url.size(), key.data(), key.size(), to, err);
        });
    }
    broca::error set_number(std::string_view name, std::uint64_t number) {
        return detail::run([&](broca_error **err) {
            return broca_options_set_number(get(), name.data(), name.size(), number, err);
        });
    }
    broca::error set_text(std::string_view name, std::string_view text) {
        return detail::run([&](broca_error **err) {
            return broca_options_set_text(get(), name.data(), name.size(), text.data(), text.size(), err);
        });
    }
    broca::error set_flag(std::string_view name, bool on) {
        return detail::run([&](broca_error **err) {
            return broca_options_set_flag(get(), name.data(), name.size(), on ? 1 : 0, err);
        });
    }
    broca::error add_trusted_roots(std::string_view pem) {
        return detail::run([&](broca_error **err) {
            return broca_options_add_trusted_roots(get(), pem.data(), pem.size(), err);
        });
    }
    result<client> make_client() const {
        return detail::make<client>(
            [&](broca_client **to, broca_error **err) { return broca_client_new(get(), to, err); });
    }
    broca_options *get() const noexcept { return object_.get(); }

  private:
    owner object_;
};

} // namespace broca
#endif
