//! Gives the shared library its name for the loader, and keeps everything but `broca_*` inside.

use std::env;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let system = env::var("CARGO_CFG_TARGET_OS")?;
    // While the major version is 0, a minor version may change the interface.
    let major: u32 = env::var("CARGO_PKG_VERSION_MAJOR")?.parse()?;
    let minor = env::var("CARGO_PKG_VERSION_MINOR")?;
    let abi = if major == 0 { format!("0.{minor}") } else { major.to_string() };
    match system.as_str() {
        "windows" => {}
        "macos" | "ios" => {
            let name = format!("@rpath/libbroca.{abi}.dylib");
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,{name}");
        }
        _ => {
            let script = Path::new(&env::var("OUT_DIR")?).join("exports.map");
            fs::write(&script, "{ global: broca_*; local: *; };\n")?;
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbroca.so.{abi}");
            println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
        }
    }
    Ok(())
}
