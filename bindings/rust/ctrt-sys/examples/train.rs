// SPDX-License-Identifier: Apache-2.0
// Trains a small network to tell positive numbers from negative ones.
use ctrt_sys::*;
use std::{ffi::CStr, ptr::{null, null_mut}};

unsafe fn check(status: ctrt_status) {
    if status != CTRT_OK {
        panic!("{}", CStr::from_ptr(ctrt_error_message()).to_string_lossy());
    }
}

unsafe fn network() -> *mut ctrt_module {
    let (mut first, mut relu, mut last, mut net) = (null_mut(), null_mut(), null_mut(), null_mut());
    check(ctrt_linear_new(&mut first, 4, 16, true, null_mut()));
    check(ctrt_relu_new(&mut relu));
    check(ctrt_linear_new(&mut last, 16, 2, true, null_mut()));
    let modules = [first, relu, last];                  // the network takes the references
    check(ctrt_sequential_new(&mut net, ctrt_modules_of(modules.as_ptr(), 3)));
    net
}

fn main() {
    let options = ctrt_adam_options { lr: 0.02, ..Default::default() };
    let (mut x, mut labels, mut y, mut adam) = (null_mut(), null_mut(), null_mut(), null_mut());
    let mut loss = 0.0;
    unsafe {
        check(ctrt_randn(&mut x, ctrt_ints_of([32i64, 4].as_ptr(), 2), CTRT_F32, null_mut()));
        check(ctrt_select(&mut labels, x, 1, 0));
        check(ctrt_gt_scalar(&mut labels, labels, ctrt_float(0.0)));
        check(ctrt_to_dtype(&mut labels, labels, CTRT_I64));
        let mut net = network();
        check(ctrt_adam_new(&mut adam, net, &options));
        for _ in 0..100 {
            check(ctrt_optimizer_zero_grad(adam, true));
            check(ctrt_forward(&mut y, net, x));
            check(ctrt_cross_entropy(&mut y, y, labels, null()));
            check(ctrt_backward(y));
            check(ctrt_optimizer_step(adam));
        }
        check(ctrt_item(&mut loss, y));
        ctrt_optimizer_release(&mut adam);
        ctrt_module_release(&mut net);
        for tensor in [&mut x, &mut labels, &mut y] {
            ctrt_tensor_release(tensor);
        }
    }
    println!("loss {:.4}", loss);
    assert!(loss < 0.1);
}
