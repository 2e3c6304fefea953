//! Selection next to the data.

mod bind;
pub mod condition;
pub mod cpu;
mod fields;
pub mod mistake;
mod parse;
pub mod plan;
mod range;
pub mod regex;
pub mod rows;
pub mod schema;
pub mod selection;
mod text;
mod token;
pub mod value;
pub mod wire;

pub use fields::FieldError;
pub use parse::{PREDICATE_MAX, Predicate};
