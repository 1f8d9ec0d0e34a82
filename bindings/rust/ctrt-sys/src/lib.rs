// SPDX-License-Identifier: Apache-2.0
//! The functions, structs and constants of `ctrt/ctrt.h`, for Rust. Everything is as in C, and the headers are the
//! reference. Structs that begin with their size have `Default`, which is what their macro is in C. Functions that are
//! inline in C are those that libctrt exports. All calls are `unsafe`.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all)]

use std::os::raw::*;

include!("bindings.rs");
