//! The manager's counters: what it has refused, dropped or repeated.

/// Declares the counters once, for the struct and for lists of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often the manager refused something, and why.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct CmCounters { $($(#[$doc])* pub $name: u64,)* }

        impl CmCounters {
            /// Every counter with its name, which begins with `cm_`.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((concat!("cm_", stringify!($name)), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Datagrams that are not MADs of communication management.
    malformed,
    /// MADs that were not sent from queue pair 1, and so perhaps by an application.
    wrong_queue_pair,
    /// Messages about a connection that is not known here, or that is another peer's.
    unknown_connection,
    /// Messages that came late, doubled or out of place, and were ignored.
    out_of_place,
    /// Messages that came again, and were answered as before.
    duplicates,
    /// Disconnection requests that name another queue pair than the connection has.
    wrong_qpn,
    /// Requests for a service without a listener, or of the other kind: connections of a datagram
    /// service, or a resolution of a service of connections.
    invalid_service,
    /// Requests for a kind of queue pair that is not supported.
    invalid_transport,
    /// Requests with a path MTU that does not exist.
    invalid_mtu,
    /// Requests without a usable CMA header.
    invalid_cma_header,
    /// Requests and replies from a queue pair that already has a connection here.
    stale_connection,
    /// Requests refused because as many connections exist, or exist with one peer, as are allowed.
    too_many_connections,
    /// Requests refused because as many wait at the listener, or wait there from one peer, as are
    /// allowed. (The peer asks again by itself.)
    backlog_full,
    /// Accepted requests that were given up, because their peers did not complete them and others
    /// needed the room.
    half_open_dropped,
    /// Connections that the application had destroyed, forgotten before late messages of the peer
    /// could no longer come, because others needed the room.
    forgotten_early,
    /// Requests sent again because the peer had no room for another connection.
    asked_again,
    /// Service id resolutions refused because as many exist, or wait from one peer, as are allowed.
    too_many_resolutions,
    /// Messages not sent because the queue of messages was full.
    outgoing_full,
    /// Messages sent again because no answer came.
    retransmissions,
    /// Connections and resolutions given up because no answer came.
    unreachable,
}
