//! Selection next to the data.

mod bind;
pub mod condition;
pub mod mistake;
mod parse;
pub mod regex;
pub mod schema;
pub mod selection;
mod token;
pub mod value;
pub mod wire;

pub use parse::Predicate;
