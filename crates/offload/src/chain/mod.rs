//! Chains: programs of work requests that change each other (RedN).
pub mod card;
pub mod construct;
mod listing;
pub mod machine;
pub mod model;
pub mod mov;
pub mod offload;
pub mod picture;
pub mod place;
mod plan;
pub mod program;
mod recycle;
pub mod request;
pub mod text;

#[cfg(test)]
mod tests;
