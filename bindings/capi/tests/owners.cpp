/* broca.hpp: a session that a program has saved is resumed by another, and everything has an owner.
 *
 * BROCA_URL and BROCA_CLIENT_KEY name a service with the scripted model.
 */
#include "service.h"
#include <broca.hpp>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

static const char schema[] =
    R"({"type":"object","properties":{"path":{"type":"string"}},"required":["path"]})";

/* Saves a session in the middle of a turn, and tells it to the process that goes on. */
static void leave_in_mid_pause(int will) {
    broca::client client{broca::client::owner(new_client(0))};
    auto tool = broca::tool::make("count", "Counts the words of a file.", schema);
    auto session = client.open({&*tool});
    auto turn = session->send("count on a.txt");
    CHECK(turn && *turn);
    for (broca::step &step : *turn) {
        if (step.kind() == BROCA_STEP_TOOL_CALL) {
            auto saved = session->save();
            CHECK(!step.may_have_run() && saved);
            std::string_view text = saved->text();
            CHECK(write(will, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
            _exit(0); /* nothing is cancelled, nobody says goodbye */
        }
    }
    _exit(1);
}

static void a_session_is_saved_attached_to_and_resumed() {
    int will[2];
    char part[1024];
    std::string left;
    CHECK(pipe(will) == 0);
    pid_t child = fork();
    if (child == 0) {
        leave_in_mid_pause(will[1]);
    }
    close(will[1]);
    for (ssize_t got; (got = read(will[0], part, sizeof part)) > 0;) {
        left.append(part, static_cast<size_t>(got));
    }
    close(will[0]);
    waitpid(child, nullptr, 0);

    broca::client client{broca::client::owner(new_client(0))};
    auto tool = broca::tool::make("count", "Counts the words of a file.", schema);
    auto session = client.attach(left, {&*tool});
    CHECK(session);
    auto turn = session->resume();
    CHECK(turn && *turn);
    int calls = 0;
    for (broca::step &step : *turn) {
        if (step.kind() == BROCA_STEP_TOOL_CALL) {
            calls++;
            CHECK(step.may_have_run() && !step.complete_text("seven words"));
        } else if (step.kind() == BROCA_STEP_DONE) {
            CHECK(step.text().find("seven words") != std::string_view::npos && step.tool_calls() == 1);
            CHECK(step.session_spent().find("\"tool_calls\":1") != std::string_view::npos);
        }
    }
    CHECK(calls == 1 && !turn->error());

    /* Nothing is resumed twice; what is not there has no steps and no error. */
    auto none = session->resume();
    CHECK(none && !*none && none->is_over());
    for (broca::step &step : *none) {
        CHECK(step.kind() == -1);
    }
    CHECK(!none->error());
    auto nobody = client.attach("hunter2");
    CHECK(!nobody && nobody.error().code() == BROCA_E_INVALID_ARGUMENT);
    CHECK(!session->close());
}

int main(int argc, char **argv) {
    wanted_test = argc > 1 ? argv[1] : nullptr;
    TEST(a_session_is_saved_attached_to_and_resumed);
    return report("owners");
}
