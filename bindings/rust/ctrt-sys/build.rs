// SPDX-License-Identifier: Apache-2.0
// Asks pkg-config (or $PKG_CONFIG) where libctrt is. Crates that depend on this one get DEP_CTRT_INCLUDE, the folders
// of the headers, and DEP_CTRT_LIB, those of the library.
use std::{env, process::Command};

fn pkg_config(option: &str) -> Vec<String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let query = format!("ctrt >= {}", env!("CARGO_PKG_VERSION"));
    match Command::new(&program).args(&["--print-errors", option, &query]).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect()
        }
        Ok(output) => panic!(
            "{} does not find ctrt: {}Install libctrt-dev, or set PKG_CONFIG_PATH to the folder of ctrt.pc.",
            program,
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{} cannot be run: {}; install pkg-config or set PKG_CONFIG", program, error),
    }
}

fn with_prefix<'a>(flags: &'a [String], prefix: &str) -> Vec<&'a str> {
    flags.iter().filter_map(|flag| flag.strip_prefix(prefix)).collect()
}

fn main() {
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR"] {
        println!("cargo:rerun-if-env-changed={}", variable);
    }
    let libs = pkg_config("--libs");
    let folders = with_prefix(&libs, "-L");
    for folder in &folders {
        println!("cargo:rustc-link-search=native={}", folder);
    }
    for library in with_prefix(&libs, "-l") {
        println!("cargo:rustc-link-lib={}", library);
    }
    println!("cargo:lib={}", folders.join(":"));
    println!("cargo:include={}", with_prefix(&pkg_config("--cflags"), "-I").join(":"));
}
