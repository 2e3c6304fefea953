//! Chains: programs of work requests that change each other (RedN).
//!
//! A [`Program`](program::Program) consists of queues of [`Request`](request::Request)s and of
//! data. Its addresses are symbolic ([`Place`](place::Place), such as a field of another request's
//! element) until it is linked for the memory and queues that it gets. Where to read on, in this
//! order:
//!
//! 1. The assembler:
//!    - [`verb`]: the verbs of work requests; [`element`]: the fields of an element.
//!    - [`place`]: symbolic addresses and values; [`request`]: work requests with such operands.
//!    - [`program`]: queues, data and imports; [`link`]: gives them addresses, encodes elements.
//!    - [`load`]: puts a program on any kind of card.
//! 2. The constructs: [`construct`]: conditionals; `loops`: loops; [`mov`]: loads and stores.
//! 3. `text` (with the feature `chain-text`): the same as a language; docs/chain-language.md is its
//!    reference.
//! 4. Whole programs: [`offload`]: look-ups and lists for clients; [`turing`]: Turing machines.
//! 5. What runs them without a host: [`model`]: a plain interpreter; [`card`]: the card. Tests
//!    compare one with the other. `plan` says where a program lies in their memory.
//! 6. What shows them: `listing`: in words; [`picture`]: drawn.
pub mod card;
pub mod construct;
pub mod element;
pub mod link;
mod listing;
pub mod load;
mod loops;
pub mod model;
pub mod mov;
pub mod offload;
pub mod picture;
pub mod place;
mod plan;
pub mod program;
pub mod request;
#[cfg(feature = "chain-text")]
pub mod text;
pub mod turing;
pub mod verb;

#[cfg(test)]
mod tests;
