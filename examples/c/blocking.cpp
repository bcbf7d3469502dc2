// A session with a tool in C++: owners instead of frees, a range instead of a loop over calls.
//
//   c++ -std=c++17 blocking.cpp $(pkg-config --cflags --libs broca) -o blocking
#include <broca.hpp>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

static int failed(const broca::error &error) {
    std::cerr << error.kind() << ": " << error.message() << '\n';
    return 1;
}

static std::string variable(const char *name, const char *otherwise) {
    const char *value = std::getenv(name);
    return value != nullptr ? value : otherwise;
}

// A real program reads the arguments with its JSON library.
static std::string path_of(std::string_view input) {
    constexpr std::string_view member = "\"path\":\"";
    auto from = input.find(member);
    if (from == std::string_view::npos) {
        return {};
    }
    auto rest = input.substr(from + member.size());
    return std::string(rest.substr(0, rest.find('"')));
}

int main(int argc, char **argv) {
    auto options = broca::options::make(variable("BROCA_URL", "http://127.0.0.1:8080"), variable("BROCA_CLIENT_KEY", ""));
    if (!options) return failed(options.error());
    auto client = options->make_client();
    if (!client) return failed(client.error());
    auto read_file = broca::tool::make(
        "read_file", "Return the text of a file.",
        R"({"type":"object","properties":{"path":{"type":"string"}},"required":["path"]})");
    if (!read_file) return failed(read_file.error());
    auto session = client->open({&*read_file});
    if (!session) return failed(session.error());

    auto turn = session->send(argc > 1 ? argv[1] : "What does read_file say about notes.txt?");
    if (!turn) return failed(turn.error());
    for (broca::step &step : *turn) {
        switch (step.kind()) {
        case BROCA_STEP_DELTA:
            if (step.delta_kind() == BROCA_DELTA_TEXT) std::cout << step.text() << std::flush;
            break;
        case BROCA_STEP_TOOL_CALL: {
            std::ifstream file(path_of(step.input()));
            std::string text{std::istreambuf_iterator<char>(file), {}};
            auto refused = file ? step.complete_text(text) : step.fail("there is no such file");
            if (refused) return failed(refused);
            break;
        }
        case BROCA_STEP_DONE:
            std::cout << "\n[" << step.rounds() << " rounds] " << step.text() << '\n';
            break;
        default:
            break;
        }
    }
    if (turn->error()) return failed(turn->error());
    auto closed = session->close();
    return closed ? failed(closed) : 0;
}
