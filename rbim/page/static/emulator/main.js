// The emulator's page.
