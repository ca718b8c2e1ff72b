//! Modes of a policy.

/// Connections that a policy lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EgressMode {
    /// None.
    #[default]
    None,
    /// Those to the targets that it allows.
    AllowList,
    /// All but those to the targets that it denies.
    Open,
}

impl EgressMode {
    /// All modes, the narrowest first.
    pub const ALL: [EgressMode; 3] = [EgressMode::None, EgressMode::AllowList, EgressMode::Open];

    /// Returns the mode's name in the API and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EgressMode::None => "none",
            EgressMode::AllowList => "allow-list",
            EgressMode::Open => "open",
        }
    }

    /// Reads a name that [`EgressMode::as_str`] wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<EgressMode> {
        EgressMode::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}
