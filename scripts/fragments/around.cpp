// What the fragments of C++ in the guides take for granted.

#include <broca.hpp>
#include <iostream>

void fragment(broca::result<broca::client> &client, broca::result<broca::session> &session, broca::tool &tool);
void fragment(broca::result<broca::client> &client, broca::result<broca::session> &session, broca::tool &tool) {
    FRAGMENT
}
