//! A connection.
use crate::front::world::*;
/// A connection.
#[derive(Debug)]
pub struct Session;
impl Session {
    pub(crate) fn new(_: &World) -> Session {
        Session
    }
    pub(crate) fn bytes(&self) -> usize {
        0
    }
    /// Runs.
    pub fn run(&mut self, _: &mut Turn, input: &[u8], _: &mut Vec<u8>) -> Step {
        Step { used: input.len(), next: Next::Close }
    }
}
