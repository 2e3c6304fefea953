//! Selection next to the data (Caribou §5): which rows, and what of them.
//!
//! On the client: [`schema`] says what a row's bytes mean; [`Predicate`] is the language (`token`,
//! `parse`, and `bind`, which puts in a schema's places); [`mistake`] shows what is wrong in a
//! text; `fields` writes and shows rows, and [`value`] has numbers and dates as people write them.
//!
//! Between: [`selection`] and [`condition`] are what is asked, [`wire`] its bytes.
//!
//! On the node: a [`plan`] judges [`rows`] in blocks, by `range` and `text`, with the processor's
//! vectors ([`remora_offload::cpu`]) and without backtracking ([`regex`]); [`plans`] keeps plans,
//! as `recent` keeps what is asked for again. A [`sieve`] is a plan at work: values that are
//! compressed, limits, [`aggregate`]s, of which [`distinct`] counts different values.
//!
//! docs/selection.md is the reference of the language, its limits and its costs.

pub mod aggregate;
mod bind;
pub mod condition;
pub mod distinct;
mod fields;
pub mod mistake;
mod parse;
pub mod plan;
pub mod plans;
mod range;
mod recent;
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
