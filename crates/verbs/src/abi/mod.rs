//! The contract: structs and constants of `infiniband/verbs.h`, by the header's own names.
//!
//! Programs read and write these structs with inline functions that were compiled before this
//! library, so each layout must be exact. `tests/layout.rs` compiles C against the distribution's
//! header and compares each size, offset and constant with the tables that the macros below keep.
//! [`newer`] holds what later releases of the header add.
//!
//! Unions that are anonymous in C have names here: `imm` is the union of `imm_data` and the
//! invalidated key, `extra` that of the fields for binding a window and for segmentation.
#![allow(missing_docs, reason = "names and meaning are the header's, and its manual's")]
#![allow(non_camel_case_types, non_snake_case, reason = "names are the header's")]

pub mod completion;
pub mod context;
pub mod device;
pub mod kernel;
pub mod memory;
pub mod newer;
pub mod queue;
pub mod rdma_cma;

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::offset_of;
use libc::{pthread_cond_t, pthread_mutex_t};

pub use completion::*;
pub use context::*;
pub use device::*;
pub use memory::*;
pub use queue::*;

/// How a struct lies in memory, for the tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct Layout {
    /// `struct` or `union`.
    pub kind: &'static str,
    pub name: &'static str,
    /// For a part of another struct: that struct's name, and the path of the part in it.
    pub part_of: Option<(&'static str, &'static str)>,
    pub size: usize,
    /// The name in C, the offset and the size.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Enums as integers, because a C program may pass any value. Also fills a table for the tests.
macro_rules! constants {
    ($table:ident; $($name:ident = $ty:ty { $($constant:ident = $value:expr,)* })*) => {
        $(
            pub type $name = $ty;
            $(pub const $constant: $name = $value;)*
        )*
        #[doc(hidden)]
        pub const $table: &[(&str, i64)] =
            &[$($((stringify!($constant), $constant as i64),)*)*];
    };
}

/// Structs as C lays them out. Also fills a table for the tests.
macro_rules! layouts {
    ($table:ident; $(
        $kind:ident $name:ident $(in $parent:ident[$path:literal])? {
            $($field:ident $([$c:literal])?: $ty:ty,)*
        }
    )*) => {
        $(layouts!(@define $kind $name { $($field: $ty,)* });)*
        #[doc(hidden)]
        pub const $table: &[Layout] = &[$(Layout {
            kind: stringify!($kind),
            name: stringify!($name),
            part_of: layouts!(@part $($parent $path)?),
            size: size_of::<$name>(),
            fields: &[$((
                layouts!(@name $field $($c)?),
                offset_of!($name, $field),
                size_of::<$ty>(),
            ),)*],
        },)*];
    };
    (@define struct $name:ident { $($field:ident: $ty:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $ty,)* }
        layouts!(@zeroed $name);
    };
    (@define union $name:ident { $($field:ident: $ty:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub union $name { $(pub $field: $ty,)* }
        layouts!(@zeroed $name);
    };
    (@zeroed $name:ident) => {
        impl $name {
            /// All bytes zero.
            pub const fn zeroed() -> $name {
                // SAFETY: the fields are integers, pointers, optional functions, and arrays of
                // these; zero is a valid value of each.
                unsafe { core::mem::zeroed() }
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
    (@part) => { None };
    (@part $parent:ident $path:literal) => { Some((stringify!($parent), $path)) };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $c:literal) => { $c };
}

use {constants, layouts};

/// Structs that only pass through this library: those of drivers and of flow steering.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            private: [u8; 0],
        }
    )*};
}

opaque! {
    ibv_flow_action ibv_flow_action_esp_attr ibv_flow_attr _compat_ibv_port_attr verbs_ex_private
}

/// Everything that the tests compare with the header.
#[doc(hidden)]
pub const LAYOUTS: &[&[Layout]] = &[
    DEVICE_LAYOUTS,
    MEMORY_LAYOUTS,
    COMPLETION_LAYOUTS,
    CONTEXT_LAYOUTS,
    QUEUE_LAYOUTS,
    kernel::KERNEL_LAYOUTS,
    rdma_cma::RDMACM_LAYOUTS,
];

/// Everything that the tests compare with the header.
#[doc(hidden)]
pub const CONSTANTS: &[&[(&str, i64)]] = &[
    DEVICE_CONSTANTS,
    MEMORY_CONSTANTS,
    COMPLETION_CONSTANTS,
    CONTEXT_CONSTANTS,
    QUEUE_CONSTANTS,
    rdma_cma::RDMACM_CONSTANTS,
];
