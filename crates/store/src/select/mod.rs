//! Selection next to the data.

pub mod aggregate;
mod bind;
pub mod condition;
pub mod cpu;
pub mod distinct;
mod fields;
pub mod mistake;
mod parse;
pub mod plan;
pub mod plans;
mod range;
pub mod regex;
pub mod rows;
pub mod schema;
pub mod selection;
pub mod sieve;
mod text;
mod token;
pub mod value;
pub mod wire;

pub use fields::FieldError;
pub use parse::{PREDICATE_MAX, Predicate};
