//! Chains: programs of work requests that change each other (RedN).
//!
//! A [`Program`](program::Program) consists of queues of [`Request`](request::Request)s and of
//! data. Its addresses are symbolic ([`Place`](place::Place), such as a field of another request's
//! element) until it is linked for the memory and queues that it gets. Where to read on, in this
//! order:
//!
//! 1. [`verb`], [`element`], [`place`], [`request`], [`program`]: the assembler; [`link`] gives a
//!    program its addresses and encodes its elements, [`load`] puts it on a card.
//! 2. [`construct`] and `recycle`: tests, blocks and loops, and [`mov`].
//! 3. `text` (with the feature `chain-text`): the same as a language; docs/chain-language.md is its
//!    reference.
//! 4. [`offload`]: look-ups and lists for clients; [`machine`]: Turing machines.
//! 5. [`model`]: a plain interpreter, and [`card`]: the card without a host. Tests compare one with
//!    the other. [`picture`] draws a chain, and `listing` puts it into words.
pub mod card;
pub mod construct;
pub mod element;
pub mod link;
mod listing;
pub mod load;
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
#[cfg(feature = "chain-text")]
pub mod text;
pub mod verb;

#[cfg(test)]
mod tests;
