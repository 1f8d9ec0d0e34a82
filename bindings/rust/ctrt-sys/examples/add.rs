// SPDX-License-Identifier: Apache-2.0
// Adds two tensors.
use ctrt_sys::*;
use std::{ffi::CStr, mem::size_of_val, ptr::null_mut};

unsafe fn check(status: ctrt_status) {
    if status != CTRT_OK {
        panic!("{}", CStr::from_ptr(ctrt_error_message()).to_string_lossy());
    }
}

fn main() {
    let (a, b, shape) = ([1.0f32, 2.0, 3.0], [10.0f32, 20.0, 30.0], [3i64]);
    let (mut x, mut y, mut sum) = (null_mut(), null_mut(), [0.0f32; 3]);
    unsafe {
        let shape = ctrt_ints_of(shape.as_ptr(), 1);
        check(ctrt_from_data(&mut x, a.as_ptr().cast(), 3, shape, CTRT_F32, null_mut()));
        check(ctrt_from_data(&mut y, b.as_ptr().cast(), 3, shape, CTRT_F32, null_mut()));
        check(ctrt_add(&mut x, x, y));
        check(ctrt_to_host(sum.as_mut_ptr().cast(), size_of_val(&sum), x, CTRT_F32));
        ctrt_tensor_release(&mut x);
        ctrt_tensor_release(&mut y);
    }
    println!("{:?}", sum);
}
