//! Linker settings of an addon.

fn main() {
    napi_build::setup();
}
