//! What the manager refused, by name.

/// Declares the counters once, for the struct and for lists of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often the manager refused something, and why.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct CmCounters { $($(#[$doc])* pub $name: u64,)* }

        impl CmCounters {
            /// Every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Not a MAD of communication management.
    malformed,
    /// Not sent from queue pair 1, so perhaps by an application.
    wrong_queue_pair,
    /// About a connection that is not known here, or is another peer's.
    unknown_connection,
    /// Late, doubled or out of place, and ignored.
    out_of_place,
    /// Doubled, and answered as before.
    duplicates,
    /// A disconnection request that names another queue pair than the connection has.
    wrong_qpn,
    /// Requests for a service that nobody offers.
    invalid_service,
    /// Requests for a kind of queue pair that is not supported.
    invalid_transport,
    /// Requests with a path MTU that does not exist.
    invalid_mtu,
    /// Requests without a usable CMA header.
    invalid_cma_header,
    /// Requests and replies from a queue pair that already has a connection here.
    stale_connection,
    /// Requests beyond the connections that may exist.
    too_many_connections,
    /// Requests beyond those that may wait at one listener.
    backlog_full,
    /// Service id resolutions beyond those that may exist.
    too_many_resolutions,
    /// Messages to send that found the queue full.
    outgoing_full,
    /// Messages sent again because no answer came.
    retransmissions,
    /// Connections and resolutions given up because no answer came.
    unreachable,
}
