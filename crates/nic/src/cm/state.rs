//! The states of a connection, and the table of what moves it: InfiniBand volume 1, chapter 12
//! (Communication Management).
//!
//! The table is [`ConnState::on`]. It says only where a connection goes; what is sent and which
//! events there are is with the handler of each input, in `receive`, `command` and `repeat`. Every
//! path leads forward, so that each connection ends, after a bounded number of events.

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ConnState {
    /// Active: the request is sent, and is repeated until it is answered.
    ReqSent,
    /// Active: the peer has the request and asks for more time.
    MraReqReceived,
    /// Active: the peer has accepted. The caller must make its queue pair ready and establish.
    RepReceived,
    /// Active: as before, and the peer has been asked for more time.
    MraRepSent,
    /// Passive: a request has come. The caller must accept or reject it.
    ReqReceived,
    /// Passive: as before, and the peer has been asked for more time.
    MraReqSent,
    /// Passive: accepted. The reply is repeated until it is answered.
    RepSent,
    /// Passive: the peer has the reply and asks for more time.
    MraRepReceived,
    /// Both sides may send.
    Established,
    /// The disconnection request is sent, and is repeated until it is answered.
    DreqSent,
    /// The peer disconnects. The caller must stop its queue pair and reply.
    DreqReceived,
    /// Over, but late messages may still come: neither ids nor queue pairs may be used again.
    TimeWait,
    /// Over. The connection waits for the caller to destroy it.
    Closed,
}

/// What can happen to a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Input {
    // From the peer.
    /// The request that began this connection, once more.
    DuplicateReq,
    MraOfReq,
    MraOfRep,
    Rej,
    /// A rejection because the peer still remembers the queue pair, which must rest before it is
    /// used again.
    RejStale,
    Rep,
    Rtu,
    Dreq,
    Drep,
    // From the clock.
    RetriesExhausted,
    TimeWaitOver,
    // From the caller.
    Accept,
    Mra,
    Establish,
    NotifyEstablished,
    Reject,
    Disconnect,
    DisconnectReply,
    Destroy,
}

/// What an input does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// The connection goes there.
    To(ConnState),
    /// The connection stays, and its last message is sent again: the peer seems not to have
    /// received it.
    Resend,
    /// The connection stays. A message is late, doubled or out of place, and is dropped; a command
    /// is an error.
    Refuse,
}

impl ConnState {
    /// The state table.
    pub(super) fn on(self, input: Input) -> Next {
        use ConnState::*;
        use Input::*;
        use Next::{Refuse, Resend, To};

        match (self, input) {
            // Active side, until the connection is established.
            (ReqSent, MraOfReq) => To(MraReqReceived),
            (ReqSent | MraReqReceived, Rep) => To(RepReceived),
            (ReqSent | MraReqReceived, Rej | RetriesExhausted) => To(Closed),
            (ReqSent | MraReqReceived, RejStale | Destroy) => To(TimeWait),
            // A duplicate REP: the peer waits, and is asked for more time.
            (RepReceived, Rep | Mra) => To(MraRepSent),
            (MraRepSent, Rep) => Resend,
            (RepReceived | MraRepSent, Establish) => To(Established),
            (RepReceived | MraRepSent, Rej | RejStale | Reject | Destroy) => To(TimeWait),

            // Passive side, until the connection is established.
            // A duplicate REQ: the peer waits, and is asked for more time.
            (ReqReceived, DuplicateReq | Mra) => To(MraReqSent),
            (MraReqSent, DuplicateReq) => Resend,
            (ReqReceived | MraReqSent, Accept) => To(RepSent),
            // A refused request leaves nothing behind, as in Linux: a repetition is a new request.
            (ReqReceived | MraReqSent, Rej | RejStale | Reject | Destroy) => To(Closed),
            (RepSent, MraOfRep) => To(MraRepReceived),
            (RepSent | MraRepReceived, DuplicateReq) => Resend,
            (RepSent | MraRepReceived, Rtu | NotifyEstablished) => To(Established),
            // The RTU was lost: the peer has established the connection and ends it already.
            (RepSent | MraRepReceived, Dreq) => To(DreqReceived),
            (RepSent | MraRepReceived, Rej | RejStale | RetriesExhausted | Destroy) => To(TimeWait),

            // Established, and after. A duplicate REP shows that the RTU was lost.
            (Established, Rep) => Resend,
            (Established, Dreq) => To(DreqReceived),
            (Established, Disconnect | Destroy) => To(DreqSent),
            (Established, Rej | RejStale) => To(TimeWait),
            (DreqSent, Drep | Dreq | Rej | RejStale | RetriesExhausted) => To(TimeWait),
            (DreqSent, Destroy) => To(DreqSent),
            (DreqReceived, Rej | RejStale) => To(TimeWait),
            (DreqReceived, Disconnect | DisconnectReply | Destroy) => To(TimeWait),
            // In time-wait the last answer is repeated, and nothing else happens.
            (TimeWait, DuplicateReq | Rep | Dreq) => Resend,
            (TimeWait, TimeWaitOver) => To(Closed),
            (TimeWait, Destroy) => To(TimeWait),
            (Closed, Destroy) => To(Closed),

            // Every other message is late, doubled or out of place; every other command an error.
            _ => Refuse,
        }
    }

    /// Does the connection repeat its last message until it is answered?
    pub(super) fn repeats(self) -> bool {
        use ConnState::*;
        matches!(self, ReqSent | MraReqReceived | RepSent | MraRepReceived | DreqSent)
    }

    /// Is this a listener's request that is not established yet?
    pub(super) fn is_pending(self) -> bool {
        use ConnState::*;
        matches!(self, ReqReceived | MraReqSent | RepSent | MraRepReceived)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;

    use super::*;

    const STATES: [ConnState; 13] = [
        ConnState::ReqSent,
        ConnState::MraReqReceived,
        ConnState::RepReceived,
        ConnState::MraRepSent,
        ConnState::ReqReceived,
        ConnState::MraReqSent,
        ConnState::RepSent,
        ConnState::MraRepReceived,
        ConnState::Established,
        ConnState::DreqSent,
        ConnState::DreqReceived,
        ConnState::TimeWait,
        ConnState::Closed,
    ];

    const INPUTS: [Input; 19] = [
        Input::DuplicateReq,
        Input::MraOfReq,
        Input::MraOfRep,
        Input::Rej,
        Input::RejStale,
        Input::Rep,
        Input::Rtu,
        Input::Dreq,
        Input::Drep,
        Input::RetriesExhausted,
        Input::TimeWaitOver,
        Input::Accept,
        Input::Mra,
        Input::Establish,
        Input::NotifyEstablished,
        Input::Reject,
        Input::Disconnect,
        Input::DisconnectReply,
        Input::Destroy,
    ];

    /// The whole matrix, so that a change of it is seen in review.
    #[test]
    fn the_table() {
        let mut table = String::new();
        for state in STATES {
            for input in INPUTS {
                match state.on(input) {
                    Next::Refuse => {}
                    Next::Resend => writeln!(table, "{state:?} + {input:?}: resend").unwrap(),
                    Next::To(next) => writeln!(table, "{state:?} + {input:?} -> {next:?}").unwrap(),
                }
            }
        }
        insta::assert_snapshot!(table);
    }

    /// No input leads back to an earlier state.
    #[test]
    fn every_path_leads_forward() {
        fn reachable(from: ConnState) -> BTreeSet<ConnState> {
            let mut seen = BTreeSet::new();
            let mut todo = vec![from];
            while let Some(state) = todo.pop() {
                for input in INPUTS {
                    if let Next::To(next) = state.on(input)
                        && next != state
                        && seen.insert(next)
                    {
                        todo.push(next);
                    }
                }
            }
            seen
        }
        for state in STATES {
            assert!(!reachable(state).contains(&state), "{state:?} can come back");
        }
    }

    /// From every state, destroying ends the connection without the peer's help.
    #[test]
    fn every_state_can_be_destroyed() {
        for state in STATES {
            let Next::To(next) = state.on(Input::Destroy) else { panic!("{state:?}") };
            assert!(matches!(next, ConnState::DreqSent | ConnState::TimeWait | ConnState::Closed));
        }
    }

    /// A state that repeats its message ends when no answer comes; no other state does.
    #[test]
    fn every_repeating_state_gives_up() {
        for state in STATES {
            let gives_up = matches!(state.on(Input::RetriesExhausted), Next::To(_));
            assert_eq!(gives_up, state.repeats(), "{state:?}");
        }
    }
}
