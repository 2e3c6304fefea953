//! The examples run, not only compile.

macro_rules! example {
    ($name:ident, $path:literal) => {
        mod $name {
            include!($path);

            #[test]
            fn runs() {
                main().unwrap();
            }
        }
    };
}

example!(one_sided, "../examples/one_sided.rs");
example!(connect, "../examples/connect.rs");
example!(atomics, "../examples/atomics.rs");
